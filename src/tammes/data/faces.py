"""Faces of people to learn, with pairs of others to be verified: LFW's own, and those of a folder."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tammes.data import counter
from tammes.data.augmentation import Augmentation
from tammes.data.counter import Stream
from tammes.data.dataset import DataSet, few
from tammes.data.folders import Listed, class_files, from_files
from tammes.data.ijb import Ijb, is_ijb, read_ijb
from tammes.data.pairs import Pairs, read_pairs, shared_people

LISTS = ("pairs*.txt", "pairs*.csv", "*.bin")
"""Names of the lists that a data folder may hold."""

LFW_SIZE = (64, 64)
LEAST_IMAGES = 2
"""LFW's people with fewer images teach nothing of what may differ between two images of one person."""
HELD_FROM = 5
"""Of a person of LFW with so many images, one is held out to measure margins on."""

DRAWN = 3000
"""At most so many same and so many different pairs are drawn from a folder."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FaceSet(DataSet):
    """A data set of people, and lists of pairs of others.

    The test images are held-out ones of the people that are learnt.
    """

    pairs: tuple[Pairs, ...]
    ijb: Ijb | None = None


def with_pairs(dataset: DataSet, path: Path) -> DataSet:
    """`dataset` with the lists of pairs that lie in its folder, and IJB-C or IJB-B, if there are any."""
    lists = sorted({file for pattern in LISTS for file in path.glob(pattern)})
    templates = [folder for folder in (path / "IJBC", path / "IJBB") if is_ijb(folder)]
    if not lists and not templates:
        return dataset
    ijb = read_ijb(templates[0]) if templates else None
    return face_set(dataset, tuple(read_pairs(file) for file in lists), ijb)


def face_set(dataset: DataSet, pairs: tuple[Pairs, ...], ijb: Ijb | None = None) -> FaceSet:
    """`dataset` with lists of pairs; people that are in both are counted and named in a warning."""
    for one in pairs:
        warn_of_shared(one, dataset.classes)
    fields = {name: getattr(dataset, name) for name in DataSet.__dataclass_fields__}
    return FaceSet(**fields, pairs=pairs, ijb=ijb)


def warn_of_shared(pairs: Pairs, classes: tuple[str, ...]) -> None:
    """Warn where people of the pairs were learnt: their scores flatter."""
    shared = shared_people(pairs, classes)
    if shared:
        warnings.warn(
            f"{len(shared)} of the {len(set(pairs.people or ()))} people in {pairs.name} are among those "
            f"that are learnt: {few(shared)}. The numbers flatter; verify on people that were not learnt.",
            stacklevel=2,
        )


def lfw_view1(root: Path, size: tuple[int, int] | None = None, max_unreadable: int = 100) -> FaceSet:
    """LFW's View 1: learn the people of `peopleDevTrain.txt`, verify the pairs of `pairsDevTest.txt`.

    No person is in both. Of people with 5 images or more one is held out; people with one image are left out.

    Args:
        root: holds `lfw` with the lists and a folder of people's folders.
        size: height and width; 64 x 64 by default.
        max_unreadable: so many broken files are skipped; more are an error.
    """
    folder = root / "lfw"
    people = folder / "peopleDevTrain.txt"
    if not people.is_file():
        raise FileNotFoundError(
            f"lfw-view1 is read from {folder}, which has no {people.name}. Give the root that holds lfw with "
            "its lists and images: --data-root."
        )
    pairs = replace(read_pairs(folder / "pairsDevTest.txt"), name="lfw_view1")
    images = Path(str(pairs.images[0])).parents[1]
    counts = dict(line.split("\t") for line in people.read_text(encoding="utf-8").splitlines()[1:])
    names = tuple(name for name, count in counts.items() if int(count) >= LEAST_IMAGES)
    files = {name: sorted((images / name).iterdir()) for name in names}
    train, test = [], []
    for label, name in enumerate(names):
        held = files[name][-1:] if len(files[name]) >= HELD_FROM else []
        test += [(str(file), label) for file in held]
        train += [(str(file), label) for file in files[name] if file not in held]
    size = size or LFW_SIZE
    options = {"image_size": size, "max_unreadable": max_unreadable, "memory_limit": 2**30}
    dataset = from_files("lfw-view1", _listed(train), _listed(test), names, **options)
    moves = Augmentation(shift=min(size) // 16, flip=True)  # the faces are aligned
    return face_set(replace(dataset, augmentation=moves), (pairs,))


def _listed(files: list[tuple[str, int]]) -> Listed:
    return tuple(path for path, _ in files), torch.tensor([label for _, label in files])


def drawn_pairs(path: Path, seed: int = 0) -> Pairs:
    """Same and different pairs, as many of each, from a folder that has a folder for each person.

    An image is paired with the next one of its person, and with one at random of another; at most `DRAWN` of
    each kind are kept.
    """
    found = class_files(path)
    counts = np.array([len(files) for files in found.values()])
    person, n = np.repeat(np.arange(len(counts)), counts), int(counts.sum())
    follows = np.flatnonzero(person[1:] == person[:-1])
    count = min(len(follows), DRAWN)
    if not count or len(counts) < 2:
        raise ValueError(f"{path} needs two people, and one of them with two images, to draw pairs from.")
    chance = counter.bits(seed, 0, np.arange(n), Stream.PAIRS)
    same = np.sort(follows[np.argsort(chance[follows])[:count]])
    different = np.sort(np.argsort(chance)[:count])
    others = n - counts[person[different]]
    share = counter.uniforms(seed, 1, different, Stream.PAIRS)
    partner = (np.cumsum(counts)[person[different]] + np.floor(share * others).astype(np.int64)) % n
    return Pairs(
        name=path.resolve().name,
        images=tuple(file for files in found.values() for file in files),
        first=np.concatenate([same, different]),
        second=np.concatenate([same + 1, partner]),
        same=np.repeat([True, False], count),
        people=tuple(name for name, files in found.items() for _ in files),
    )
