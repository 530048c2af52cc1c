"""Epochs of standardized batches, independent of worker count, world size, batch size and resume point.

The order of samples in an epoch is a function of (seed, epoch) only. A draw is an integer: the sample's
index, plus the size of the set for each earlier draw of that sample in the epoch. So a sample drawn twice is
augmented differently, and nothing depends on batches, ranks or workers.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tammes._common.checks import at_least, one_of
from tammes.lab.data import counter_rng
from tammes.lab.data.augmentation import Augmentation, gather, jitter
from tammes.lab.data.counter_rng import Stream
from tammes.lab.data.dataset import DataSet, Encoded, InMemory, standardize
from tammes.lab.data.identity_sampling import IDENTITIES, identities
from tammes.lab.data.images import Unreadable

LabelArray = Int[np.ndarray, " n"]
Draws = Int[np.ndarray, " m"]
Steps = list[Int[np.ndarray, "_"]]  # the draws of each step


def shuffled(labels: LabelArray, seed: int, epoch: int) -> Draws:
    """Every sample once."""
    return counter_rng.permutation(seed, epoch, len(labels))


def balanced(labels: LabelArray, seed: int, epoch: int) -> Draws:
    """Every class equally often, with as many draws as there are samples.

    Each class cycles through its samples in random order. If the draws do not divide evenly, each epoch
    chooses different classes to get one draw more.

    >>> draws = balanced(np.array([0, 0, 0, 0, 0, 1]), seed=0, epoch=0)
    >>> sorted((draws % 6).tolist())[-3:]
    [5, 5, 5]
    """
    n = len(labels)
    classes, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    turns = np.full(len(classes), n // len(classes))
    turns[(epoch * (n % len(classes)) + np.arange(n % len(classes))) % len(classes)] += 1
    rounds = -(-turns // counts)
    candidates = np.concatenate([np.arange(n)[r < rounds[place]] + r * n for r in range(rounds.max())])
    own = place[candidates % n]
    chance = counter_rng.bits(seed, epoch, candidates, Stream.TURN)
    chosen = candidates[counter_rng.ranks(own, chance, candidates // n) < turns[own]]
    return chosen[np.argsort(counter_rng.bits(seed, epoch, chosen, Stream.ORDER), kind="stable")]


SAMPLINGS: dict[str, Callable[[LabelArray, int, int], Draws]] = {"shuffled": shuffled, "balanced": balanced}
"""Random orders by name; `identities`, which needs to know the batches, is the third."""


class Batch(NamedTuple):
    """Standardized images (channels-last), their labels, and their indices in the split."""

    images: Float[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    indices: Int64[Tensor, " n"]


class Batches:
    """Batches of one split of a data set.

    Order and augmentation of a sample depend only on (seed, epoch, index). In-memory sets stay on `device` as
    bytes and are augmented and standardized per batch. Files are decoded by worker processes.

    Args:
        dataset: provides the images, their channel statistics and the `augmentation`.
        split: "train" or "test".
        batch_size: global batch size, summed over ranks.
        training: sample at random and augment; False goes through the split in order, without augmentation.
        sampling: sampling in training: "shuffled" (each sample once), "balanced" (each class equally often),
            "identities" (P x K: the same number of images of each sampled class).
        images_per_person: K, for "identities".
        seed: seed of order and augmentation.
        drop_last: drop the last batch if it is smaller than the others.
        device: device of the batches.
        workers: processes that decode files. In-memory sets use none.

    >>> from tammes.lab.data import load
    >>> batches = Batches(load("digits"), "train", batch_size=256, training=True)
    >>> len(batches), next(batches.epoch(0)).images.shape
    (6, torch.Size([256, 1, 8, 8]))
    """

    def __init__(
        self,
        dataset: DataSet,
        split: Literal["train", "test"] = "train",
        *,
        batch_size: int,
        training: bool,
        sampling: str = "shuffled",
        images_per_person: int = 4,
        seed: int = 0,
        drop_last: bool = False,
        device: str | torch.device = "cpu",
        workers: int = 2,
    ) -> None:
        self.batch_size = at_least("batch_size", batch_size, 1)
        self.seed = at_least("seed", seed, 0)
        self.workers = at_least("workers", workers, 0)
        self.sampling = one_of("sampling", sampling, (*SAMPLINGS, IDENTITIES))
        self.images_per_person = images_per_person
        self.training, self.drop_last, self.device = training, drop_last, torch.device(device)
        self.augmentation = dataset.augmentation if training else Augmentation()
        stored = dataset.split(split)
        _check_augmentation(self.augmentation, stored)
        self.size = len(stored)
        self.labels = stored.labels.to(self.device)
        self.mean = torch.tensor(dataset.mean, device=self.device)
        self.std = torch.tensor(dataset.std, device=self.device)
        self._stored = stored if isinstance(stored, Encoded) else _pixels(stored).to(self.device)
        self._unreadable = Unreadable(stored.max_unreadable) if isinstance(stored, Encoded) else None

    def __len__(self) -> int:
        """Steps per epoch, the same on every rank."""
        whole, rest = divmod(self.size, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, epoch: int, *, rank: int = 0, world_size: int = 1, start: int = 0) -> Iterator[Batch]:
        """Yield this rank's shard of each batch, starting at step `start`.

        The shards of one step, concatenated in rank order, equal the batch of a single process. Shard sizes
        differ by at most one, so a rank may get fewer rows of the last batch, or none.
        """
        at_least("epoch", epoch, 0)
        at_least("start", start, 0)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, world_size), got rank={rank}, world_size={world_size}.")
        if world_size > self.batch_size:
            raise ValueError(
                f"batch_size={self.batch_size} is the global batch size and must be at least "
                f"world_size={world_size}, one sample per rank."
            )
        return self._epoch(epoch, [np.array_split(b, world_size)[rank] for b in self._steps(epoch)[start:]])

    def _steps(self, epoch: int) -> Steps:
        order = self._draws(epoch) if self.training else np.arange(self.size)
        return [order[i * self.batch_size : (i + 1) * self.batch_size] for i in range(len(self))]

    def _draws(self, epoch: int) -> Draws:
        labels = self.labels.cpu().numpy()
        if self.sampling == IDENTITIES:
            shape = {"batch_size": self.batch_size, "images": self.images_per_person}
            return identities(labels, self.seed, epoch, **shape)
        return SAMPLINGS[self.sampling](labels, self.seed, epoch)

    def _epoch(self, epoch: int, steps: Steps) -> Iterator[Batch]:
        if isinstance(self._stored, Encoded):
            for pixels, draws in self._decoded(self._stored, epoch, steps):
                yield self._batch(epoch, draws, pixels.to(self.device), torch.arange(len(draws)))
        else:
            for draws in steps:
                yield self._batch(epoch, draws, self._stored, torch.from_numpy(draws % self.size))

    def _batch(
        self,
        epoch: int,
        draws: Int[np.ndarray, " n"],
        pixels: UInt8[Tensor, "all h w c"],
        rows: Int64[Tensor, " n"],
    ) -> Batch:
        moves = self.augmentation.moves(self.seed, epoch, draws).to(self.device)
        moved = gather(pixels, rows.to(self.device), moves, black=self.augmentation.border == "black")
        if self.augmentation.jitter:
            moved = jitter(moved, self.augmentation.factors(self.seed, epoch, draws).to(self.device))
        images = standardize(moved.permute(0, 3, 1, 2), self.mean, self.std)
        if self.augmentation.erase:
            erased = self.augmentation.erased(self.seed, epoch, draws, *moved.shape[1:3])
            images.masked_fill_(erased.to(self.device)[:, None], 0.0)  # 0 is the mean after standardizing
        places = torch.from_numpy(draws % self.size).to(self.device)
        return Batch(images, self.labels[places], places)

    def _decoded(
        self, files: Encoded, epoch: int, steps: Steps
    ) -> Iterator[tuple[UInt8[Tensor, "n h w 3"], Int[np.ndarray, " n"]]]:
        """Decoded images of each step and their draws, without unreadable ones."""
        decoder = _Decoder(files, self.augmentation, self.seed, epoch)
        loader = DataLoader(
            decoder,
            batch_sampler=[step.tolist() for step in steps],
            num_workers=self.workers,
            collate_fn=decoder.collate,
            generator=torch.Generator(),  # otherwise the loader would advance the global generator
        )
        assert self._unreadable is not None
        for step, (pixels, failures) in zip(steps, loader, strict=True):
            for place, reason in failures.items():
                self._unreadable.note(files.name(int(step[place] % self.size)), reason)
            yield pixels, np.delete(step, list(failures))


class _Decoder(Dataset):
    """Decodes the files of one epoch to bytes; runs in the workers."""

    def __init__(self, files: Encoded, augmentation: Augmentation, seed: int, epoch: int) -> None:
        self.files, self.augmentation, self.seed, self.epoch = files, augmentation, seed, epoch

    def __getitem__(self, draw: int) -> UInt8[np.ndarray, "h w 3"] | str:
        box = functools.partial(self.augmentation.box, self.seed, self.epoch, draw)
        image = self.files.read(draw % len(self.files), box)
        if isinstance(image, str):
            return image
        return self.augmentation.changed(self.seed, self.epoch, draw, image)

    def collate(self, images: list[np.ndarray | str]) -> tuple[UInt8[Tensor, "m h w 3"], dict[int, str]]:
        """The decoded images, and for each unreadable one its position and the reason."""
        read = [image for image in images if not isinstance(image, str)]
        stacked = np.stack(read) if read else np.empty((0, *self.files.size, 3), np.uint8)
        return torch.from_numpy(stacked), {i: r for i, r in enumerate(images) if isinstance(r, str)}


def _pixels(stored: InMemory) -> UInt8[Tensor, "n h w c"]:
    return stored.images.permute(0, 2, 3, 1).contiguous()


def _check_augmentation(augmentation: Augmentation, stored: InMemory | Encoded) -> None:
    side = min(stored.shape[1:])
    if augmentation.shift >= side:
        raise ValueError(
            f"shift must be less than the image side of {side} pixels, got {augmentation.shift}."
        )
    if isinstance(stored, InMemory) and (augmentation.crop is not None or augmentation.trivial):
        needs = "trivial" if augmentation.crop is None else f"crop={augmentation.crop}"
        raise ValueError(
            f"{needs} needs images read from disk, but these are in memory. Use shift, or load the "
            "folder with memory_limit=0."
        )
