"""Data sets: labeled training and test images, and the channel statistics that standardize them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, UInt8
from torch import Tensor

from tammes._common.checks import at_least, one_of, within
from tammes._common.wording import few
from tammes.lab.data import counter_rng
from tammes.lab.data.augmentation import Augmentation, Box, center_box, whole_box
from tammes.lab.data.counter_rng import Stream
from tammes.lab.data.images import try_read

Shape = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class InMemory:
    """Labeled images held in memory as bytes. A channels-last tensor is used without a copy.

    `files` holds the paths the images were decoded from, or is empty.
    """

    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images must be uint8 of shape (n, channels, height, width), got {self.images.dtype} of "
                f"shape {tuple(self.images.shape)}."
            )
        check_label_vector(self.labels, len(self.images))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> Shape:
        """Channels, height, width."""
        c, h, w = self.images.shape[1:]
        return (c, h, w)

    def select(self, indices: Int[Tensor, " m"]) -> "InMemory":
        """The samples `indices`, in that order."""
        files = tuple(self.files[i] for i in indices.tolist()) if self.files else ()
        return InMemory(self.images[indices], self.labels[indices], files)


class Encoded:
    """Labeled images that are decoded to RGB and resized to `size` on each use."""

    labels: Int64[Tensor, " n"]
    size: tuple[int, int]
    max_unreadable: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> Shape:
        """Channels, height, width."""
        return (3, *self.size)

    def name(self, index: int) -> str:
        """Name of an image in messages."""
        raise NotImplementedError

    def read(
        self, index: int, box: Callable[[int, int, float], Box] = center_box
    ) -> UInt8[np.ndarray, "h w 3"] | str:
        """Decode the crop chosen by `box` and resize it to `size`; return the reason if it is unreadable."""
        raise NotImplementedError

    def select(self, indices: Int[Tensor, " m"]) -> "Encoded":
        """The samples `indices`, in that order."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class OnDisk(Encoded):
    """Labeled image files.

    Images of another aspect ratio than `size` are center-cropped, or stretched with `stretch`.
    """

    paths: tuple[str, ...]
    labels: Int64[Tensor, " n"]
    size: tuple[int, int]
    max_unreadable: int = 100
    stretch: bool = False

    def __post_init__(self) -> None:
        check_label_vector(self.labels, len(self.paths))
        at_least("max_unreadable", self.max_unreadable, 0)

    def name(self, index: int) -> str:
        return self.paths[index]

    def read(
        self, index: int, box: Callable[[int, int, float], Box] = center_box
    ) -> UInt8[np.ndarray, "h w 3"] | str:
        return try_read(self.paths[index], self.size, whole_box if self.stretch else box)

    def select(self, indices: Int[Tensor, " m"]) -> "OnDisk":
        """The samples `indices`, in that order."""
        paths = tuple(self.paths[i] for i in indices.tolist())
        return replace(self, paths=paths, labels=self.labels[indices])


Split = InMemory | Encoded
"""The training or test images of a data set: decoded in memory, or read from disk as they are used."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DataSet:
    """Training and test split of a classification problem.

    Args:
        name: name shown in tables.
        train, test: the splits. They share one image shape, labels are in [0, k), and every class has a
            training image.
        classes: the k class names, in label order.
        mean, std: per channel, of the training images scaled to [0, 1].
        augmentation: default augmentation for training on such images.
        split_origin: where the test split comes from, in words.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation = field(default_factory=Augmentation)
    split_origin: str = "the data set's own"

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise ValueError(f"{self.name}: margins need at least 2 classes, got {list(self.classes)}.")
        if self.train.shape != self.test.shape:
            raise ValueError(
                f"{self.name}: train and test images must have one shape, got {self.train.shape} and "
                f"{self.test.shape}. Set image_size."
            )
        if not len(self.test):
            raise ValueError(
                f"{self.name}: there is no test image. Add test images, or more images per class."
            )
        _check_range(self.name, self.train.labels, len(self.classes))
        self._check_test_labels()
        empty = (self.class_counts == 0).nonzero().flatten().tolist()
        if empty:
            raise ValueError(f"{self.name}: no training image of {few([self.classes[j] for j in empty])}.")

    def _check_test_labels(self) -> None:
        _check_range(self.name, self.test.labels, len(self.classes))

    @property
    def shape(self) -> Shape:
        """Channels, height, width of its images."""
        return self.train.shape

    @property
    def class_counts(self) -> Int64[Tensor, " k"]:
        """Number of training images of each class."""
        return torch.bincount(self.train.labels, minlength=len(self.classes))

    def split(self, name: Literal["train", "test"]) -> Split:
        """The split called `name`."""
        return {"train": self.train, "test": self.test}[one_of("split", name, ("train", "test"))]


def hold_out(dataset: DataSet, share: float = 0.2, seed: int = 0) -> DataSet:
    """Replace the test split by a stratified, held-out share of the training images.

    Use it to choose hyperparameters without looking at the test set.
    """
    train, test = map(dataset.train.select, stratified(dataset.train.labels, share, seed))
    origin = f"{100 * share:g} % of the training images, held out at random"
    return replace(dataset, name=f"{dataset.name}-held-out", train=train, test=test, split_origin=origin)


def stratified(
    labels: Int64[Tensor, " n"], share: float = 0.2, seed: int = 0
) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " held"]]:
    """Split samples into kept and held out: hold out a random `share` of every class, rounded.

    A class of two or more images keeps at least one and holds out at least one. A single image is kept.
    Indices are ascending.

    >>> kept, held = stratified(torch.tensor([0, 0, 0, 0, 1, 1, 2]), share=0.25)
    >>> len(kept), len(held)
    (5, 2)
    """
    within("share", share, 0.0, 1.0)
    y = labels.numpy()
    chance = counter_rng.bits(seed, 0, np.arange(len(y)), Stream.HOLD_OUT)
    counts = np.bincount(y)
    most = np.maximum(counts - 1, 0)
    take = np.clip(np.floor(share * counts + 0.5).astype(np.int64), np.minimum(1, most), most)
    held = torch.from_numpy(counter_rng.ranks(y, chance) < take[y])
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def in_memory(
    name: str,
    train: InMemory,
    test: InMemory,
    classes: tuple[str, ...],
    augmentation: Augmentation,
    size: tuple[int, int] | None = None,
) -> DataSet:
    """Build a `DataSet` from two in-memory splits, with the channel statistics of the training images.

    With a `size`, images are resized first and the augmentation's shift scales with them.
    """
    if not len(train):
        raise ValueError(f"{name}: there is no training image.")
    if size is not None:
        shift = round(augmentation.shift * min(size) / min(train.shape[1:]))
        augmentation = replace(augmentation, shift=shift)
        train, test = (replace(split, images=resize_and_crop(split.images, size)) for split in (train, test))
    mean, std = channel_statistics(train.images)
    return DataSet(
        name=name, train=train, test=test, classes=classes, mean=mean, std=std, augmentation=augmentation
    )


def channel_statistics(images: UInt8[Tensor, "n c h w"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of `images` scaled to [0, 1]; a constant channel has std 1.

    Computed from a histogram, so exact in integers and fast: the bytes are read once.
    """
    c = images.shape[1]
    pixels = images.permute(0, 2, 3, 1).reshape(-1, c).numpy()
    counts = np.zeros(256 * c, np.int64)
    for part in np.array_split(pixels, max(1, len(pixels) >> 18)):
        counts += np.bincount((part + 256 * np.arange(c)).ravel(), minlength=256 * c)
    share = counts.reshape(c, 256) / len(pixels)
    value = np.arange(256) / 255
    mean = share @ value
    std = np.sqrt(np.maximum(share @ value**2 - mean**2, 0.0))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-6, std, 1.0).tolist())


def standardize(
    images: UInt8[Tensor, "n c h w"], mean: Float[Tensor, " c"], std: Float[Tensor, " c"]
) -> Float[Tensor, "n c h w"]:
    """(images / 255 - mean) / std as float32, channels-last in memory."""
    n, c, h, w = images.shape
    scale, offset = 1 / (255 * std), -mean / std
    # Rows of w * c numbers: arithmetic against a last axis of 3 would run unvectorized, 20 times slower.
    lines = images.permute(0, 2, 3, 1).reshape(n, h, w * c).to(torch.float32)
    lines.mul_(scale.repeat(w)).add_(offset.repeat(w))
    return lines.view(n, h, w, c).permute(0, 3, 1, 2)


def resize_and_crop(
    images: UInt8[Tensor, "n c h w"], size: tuple[int, int]
) -> UInt8[Tensor, "n c height width"]:
    """Resize `images` (bilinear, antialiased) to cover `size`, then center-crop."""
    h, w = images.shape[2:]
    if (h, w) == size:
        return images
    tall, wide = min(h, round(w * size[0] / size[1])), min(w, round(h * size[1] / size[0]))
    top, left = (h - tall) // 2, (w - wide) // 2
    part = images[:, :, top : top + tall, left : left + wide]
    return torch.nn.functional.interpolate(part, size=size, mode="bilinear", antialias=True)


def check_label_vector(labels: Tensor, n: int) -> None:
    """Check that `labels` is an int64 vector with one entry for each of n images."""
    if labels.dtype != torch.int64 or labels.shape != (n,):
        raise ValueError(
            f"labels must be int64 of shape ({n},), one per image, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )


def _check_range(name: str, labels: Int64[Tensor, " n"], k: int) -> None:
    wrong = labels[(labels < 0) | (labels >= k)]
    if len(wrong):
        raise ValueError(
            f"{name}: labels must lie in [0, {k}), one label per class name, got {int(wrong[0])}."
        )
