"""Face data sets: identities to train on and pairs of other people to verify, from LFW or a folder."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tammes._common.wording import few
from tammes.lab.data import counter_rng
from tammes.lab.data.augmentation import Augmentation
from tammes.lab.data.counter_rng import Stream
from tammes.lab.data.dataset import DataSet
from tammes.lab.data.ijb_lists import Ijb, is_ijb, read_ijb
from tammes.lab.data.image_folders import Listed, class_files, from_files
from tammes.lab.data.pairs import Pairs, read_pairs, shared_people
from tammes.lab.data.text_files import below, read_lines, whole_number

LISTS = ("pairs*.txt", "pairs*.csv", "*.bin")
"""File patterns of pair lists in a data folder."""

LFW_SIZE = (64, 64)
LEAST_IMAGES = 2
"""LFW identities with fewer images are skipped: they show no variation within a person."""
HELD_FROM = 5
"""LFW identities with at least this many images hold one out for evaluation."""

DRAWN = 3000
"""Maximum number of same pairs, and of different pairs, to draw from a folder."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FaceSet(DataSet):
    """A data set of identities to train on, with lists of pairs to verify.

    The test images are held-out images of the training identities.
    """

    pairs: tuple[Pairs, ...]
    ijb: Ijb | None = None


def with_pairs(dataset: DataSet, path: Path) -> DataSet:
    """Add the pair lists found in the folder of `dataset`, and IJB-C or IJB-B if present."""
    lists, templates = _lists(path), _templates(path)
    if not lists and not templates:
        return dataset
    ijb = read_ijb(templates[0]) if templates else None
    return face_set(dataset, tuple(read_pairs(file) for file in lists), ijb)


def has_pairs(path: Path) -> bool:
    """Whether the folder `path` holds lists of pairs, so that its images are faces."""
    return bool(_lists(path) or _templates(path))


def _lists(path: Path) -> list[Path]:
    return sorted({file for pattern in LISTS for file in path.glob(pattern)})


def _templates(path: Path) -> list[Path]:
    return [folder for folder in (path / "IJBC", path / "IJBB") if is_ijb(folder)]


def face_set(dataset: DataSet, pairs: tuple[Pairs, ...], ijb: Ijb | None = None) -> FaceSet:
    """Add pair lists to `dataset`, with a warning that counts and names people who are in both."""
    for one in pairs:
        warn_of_shared(one, dataset.classes)
    fields = {name: getattr(dataset, name) for name in DataSet.__dataclass_fields__}
    return FaceSet(**fields, pairs=pairs, ijb=ijb)


def warn_of_shared(pairs: Pairs, classes: tuple[str, ...]) -> None:
    """Warn if training and verification identities overlap: their scores are optimistic."""
    shared = shared_people(pairs, classes)
    if shared:
        warnings.warn(
            f"{len(shared)} of the {len(set(pairs.people or ()))} people in {pairs.name} are also in "
            f"the training set: {few(shared)}. Scores are optimistic; verify on other people.",
            stacklevel=2,
        )


def lfw_view1(root: Path, size: tuple[int, int] | None = None, max_unreadable: int = 100) -> FaceSet:
    """Load LFW View 1: train on `peopleDevTrain.txt`, verify the pairs of `pairsDevTest.txt`.

    The two are disjoint. People with 5 or more images hold one out. Those with one image are skipped.

    Args:
        root: folder that contains `lfw`, with the lists and a folder of per-person folders.
        size: height and width. Default: 64 x 64.
        max_unreadable: maximum number of unreadable image files to skip before failing.
    """
    folder = root / "lfw"
    people = folder / "peopleDevTrain.txt"
    if not people.is_file():
        raise FileNotFoundError(
            f"lfw-view1 is read from {folder}, which has no {people.name}. Set --data-root to the folder "
            "that contains lfw with its lists and images."
        )
    pairs = replace(read_pairs(folder / "pairsDevTest.txt"), name="lfw_view1")
    images = Path(str(pairs.images[0])).parents[1]
    counts = dict(_person(people, line) for line in read_lines(people)[1:])
    names = tuple(name for name, count in counts.items() if count >= LEAST_IMAGES)
    files = {name: _images_of(people, images, name) for name in names}
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


def _person(path: Path, line: str) -> tuple[str, int]:
    name, _, count = line.partition("\t")
    number = whole_number(count.strip())
    if not name or number is None:
        raise ValueError(f"Each line of {path} must have a person and a number, got {line!r}.")
    return name, number


def _images_of(path: Path, folder: Path, person: str) -> list[Path]:
    home = below(folder, person)
    if home is None or not home.is_dir():
        raise ValueError(f"{path} names {person!r}, who has no folder in {folder}.")
    return sorted(home.iterdir())


def _listed(files: list[tuple[str, int]]) -> Listed:
    return tuple(path for path, _ in files), torch.tensor([label for _, label in files])


def drawn_pairs(path: Path, seed: int = 0) -> Pairs:
    """Draw equally many same and different pairs from a folder with one subfolder per person.

    Each image is paired with the next image of the same person and with a random image of another. At most
    `DRAWN` pairs of each kind are kept.
    """
    found, _ = class_files(path)
    counts = np.array([len(files) for files in found.values()])
    person, n = np.repeat(np.arange(len(counts)), counts), int(counts.sum())
    follows = np.flatnonzero(person[1:] == person[:-1])
    count = min(len(follows), DRAWN)
    if not count or len(counts) < 2:
        raise ValueError(f"Drawing pairs from {path} needs at least two people, one of them with two images.")
    chance = counter_rng.bits(seed, 0, np.arange(n), Stream.PAIRS)
    same = np.sort(follows[np.argsort(chance[follows])[:count]])
    different = np.sort(np.argsort(chance)[:count])
    others = n - counts[person[different]]
    share = counter_rng.uniforms(seed, 1, different, Stream.PAIRS)
    partner = (np.cumsum(counts)[person[different]] + np.floor(share * others).astype(np.int64)) % n
    return Pairs(
        name=path.resolve().name,
        images=tuple(file for files in found.values() for file in files),
        first=np.concatenate([same, different]),
        second=np.concatenate([same + 1, partner]),
        same=np.repeat([True, False], count),
        people=tuple(name for name, files in found.items() for _ in files),
    )
