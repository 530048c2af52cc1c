"""What a data set is: images with labels to train on, others to test on, and how to normalise them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int, Int64, UInt8
from torch import Tensor

from tammes.checks import at_least, one_of, within
from tammes.data import counter
from tammes.data.augmentation import Augmentation, Box, centre_box, whole_box
from tammes.data.counter import Stream
from tammes.data.images import try_read
from tammes.data.pixels import channel_statistics, fit

Shape = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class InMemory:
    """Labelled images held as bytes; a channels-last tensor is used as it is, without a copy."""

    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images must be uint8 of shape (n, channels, height, width), got {self.images.dtype} of "
                f"shape {tuple(self.images.shape)}."
            )
        check_labels(self.labels, len(self.images))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> Shape:
        """Channels, height, width."""
        c, h, w = self.images.shape[1:]
        return (c, h, w)

    def select(self, indices: Int[Tensor, " m"]) -> "InMemory":
        """The samples `indices`, in that order."""
        return InMemory(self.images[indices], self.labels[indices])


class Encoded:
    """Labelled images that are decoded as RGB and fitted to `size` each time they are used."""

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
        """What messages call an image."""
        raise NotImplementedError

    def read(
        self, index: int, box: Callable[[int, int, float], Box] = centre_box
    ) -> UInt8[np.ndarray, "h w 3"] | str:
        """The part of an image that `box` chooses, at `size`, or the reason why it cannot be read."""
        raise NotImplementedError

    def select(self, indices: Int[Tensor, " m"]) -> "Encoded":
        """The samples `indices`, in that order."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class OnDisk(Encoded):
    """Labelled image files.

    What does not have the shape of `size` is cut to it, or with `stretch` stretched to it.
    """

    paths: tuple[str, ...]
    labels: Int64[Tensor, " n"]
    size: tuple[int, int]
    max_unreadable: int = 100
    stretch: bool = False

    def __post_init__(self) -> None:
        check_labels(self.labels, len(self.paths))
        at_least("max_unreadable", self.max_unreadable, 0)

    def name(self, index: int) -> str:
        return self.paths[index]

    def read(
        self, index: int, box: Callable[[int, int, float], Box] = centre_box
    ) -> UInt8[np.ndarray, "h w 3"] | str:
        return try_read(self.paths[index], self.size, whole_box if self.stretch else box)

    def select(self, indices: Int[Tensor, " m"]) -> "OnDisk":
        """The samples `indices`, in that order."""
        paths = tuple(self.paths[i] for i in indices.tolist())
        return replace(self, paths=paths, labels=self.labels[indices])


Split = InMemory | Encoded


@dataclass(frozen=True, eq=False, kw_only=True)
class DataSet:
    """Train and test split of one classification problem.

    Args:
        name: what tables call it.
        train, test: the splits; same image shape, labels in [0, k), every class has a training image.
        classes: the k names, in label order.
        mean, std: per channel, of the training images scaled to [0, 1].
        augmentation: what usually helps in training on such images.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise ValueError(f"{self.name}: margins need at least 2 classes, got {list(self.classes)}.")
        if self.train.shape != self.test.shape:
            raise ValueError(
                f"{self.name}: train and test images must have one shape, got {self.train.shape} and "
                f"{self.test.shape}. Give an image_size."
            )
        if not len(self.test):
            raise ValueError(f"{self.name}: there is no test image. Add some, or more images to each class.")
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
        """The split of that name."""
        return {"train": self.train, "test": self.test}[one_of("split", name, ("train", "test"))]


def hold_out(dataset: DataSet, share: float = 0.2, seed: int = 0) -> DataSet:
    """`dataset` with a stratified share of its training images in place of the test images.

    For choosing settings without a look at the test set.
    """
    train, test = map(dataset.train.select, stratified(dataset.train.labels, share, seed))
    return replace(dataset, name=f"{dataset.name}-held-out", train=train, test=test)


def stratified(
    labels: Int64[Tensor, " n"], share: float = 0.2, seed: int = 0
) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " held"]]:
    """The samples kept, and those held out: a random `share` of every class, rounded; indices ascending.

    Of a class of two images or more at least one is held out and one kept; a single image is kept.

    >>> kept, held = stratified(torch.tensor([0, 0, 0, 0, 1, 1, 2]), share=0.25)
    >>> len(kept), len(held)
    (5, 2)
    """
    within("share", share, 0.0, 1.0)
    y = labels.numpy()
    chance = counter.bits(seed, 0, np.arange(len(y)), Stream.HOLD_OUT)
    counts = np.bincount(y)
    most = np.maximum(counts - 1, 0)
    take = np.clip(np.floor(share * counts + 0.5).astype(np.int64), np.minimum(1, most), most)
    held = torch.from_numpy(counter.ranks(y, chance) < take[y])
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def in_memory(
    name: str,
    train: InMemory,
    test: InMemory,
    classes: tuple[str, ...],
    augmentation: Augmentation,
    size: tuple[int, int] | None = None,
) -> DataSet:
    """A `DataSet` of two splits in memory, its mean and standard deviation those of the training images.

    With a `size`, images are fitted to it first, and the shift grows or shrinks with them.
    """
    if not len(train):
        raise ValueError(f"{name}: there is no training image.")
    if size is not None:
        shift = round(augmentation.shift * min(size) / min(train.shape[1:]))
        augmentation = replace(augmentation, shift=shift)
        train, test = (InMemory(fit(split.images, size), split.labels) for split in (train, test))
    mean, std = channel_statistics(train.images)
    return DataSet(
        name=name, train=train, test=test, classes=classes, mean=mean, std=std, augmentation=augmentation
    )


def check_labels(labels: Tensor, n: int) -> None:
    """`labels` are an int64 vector with one entry for each of n images."""
    if labels.dtype != torch.int64 or labels.shape != (n,):
        raise ValueError(
            f"labels must be int64 of shape ({n},), one for each image, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )


def _check_range(name: str, labels: Int64[Tensor, " n"], k: int) -> None:
    wrong = labels[(labels < 0) | (labels >= k)]
    if len(wrong):
        raise ValueError(
            f"{name}: labels must lie in [0, {k}), one for each class name, got {int(wrong[0])}."
        )


def few(names: list[str]) -> str:
    """Up to five names, and how many more."""
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + rest
