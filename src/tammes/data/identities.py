"""People seen by several cameras: Market-1501, DukeMTMC-reID, and whatever is laid out or listed as they are.

Person and camera stand in the names of files, as in `0002_c1s1_000451_03.jpg`: person 2, camera 1. Person -1
is junk: left out of training, and neither right nor wrong in a gallery. Person 0 of these sets is a
distractor, whom no query asks for, so it is a wrong answer in every list; the rules need not know it.
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Int64, UInt8
from torch import Tensor

from tammes.data.augmentation import Augmentation
from tammes.data.dataset import DataSet, InMemory, OnDisk, Split
from tammes.data.folders import IMAGENET_MEAN, IMAGENET_STD, decoded
from tammes.data.images import SUFFIXES, Unreadable
from tammes.data.pixels import channel_statistics

ROLES = ("train", "query", "gallery")
FOLDERS = {
    "train": ("bounding_box_train", "train"),
    "query": ("query",),
    "gallery": ("bounding_box_test", "gallery"),
}
PLACES = {
    "market1501": ("Market-1501-v15.09.15", "market1501"),
    "dukemtmc-reid": ("DukeMTMC-reID", "dukemtmc-reid"),
}
"""Named sets, and the folders below the data root that they lie in."""

NAME = re.compile(r"(-?\d+)_c(\d+)")
JUNK = -1
USUAL_SIZE = (256, 128)
TRAINED = 2 / 3
"""Share of the people of one plain folder that are for training."""


class Shot(NamedTuple):
    """One image: its file, who is on it, which camera took it."""

    path: Path
    person: int
    camera: int


Shots = dict[str, list[Shot]]  # by role


@dataclass(frozen=True, eq=False, kw_only=True)
class IdentitySet(DataSet):
    """People to learn from, and others to be found again.

    The test images are the queries, then the gallery; their labels are ids of people whom training never
    shows, not classes.

    Args:
        cameras: of the test images.
        queries: so many of the test images, the first ones, are queries.
    """

    cameras: Int64[Tensor, " n"]
    queries: int

    def _check_test_labels(self) -> None:
        if not 0 < self.queries < len(self.test):
            raise ValueError(
                f"{self.name} needs queries and a gallery, got {self.queries} queries among "
                f"{len(self.test)} test images."
            )
        if len(self.cameras) != len(self.test):
            raise ValueError(
                f"{self.name} needs the camera of each of its {len(self.test)} test images, got "
                f"{len(self.cameras)}."
            )


def identity_set(
    name: str,
    shots: Shots,
    *,
    size: tuple[int, int] | None = None,
    max_unreadable: int = 100,
    memory_limit: int = 2**30,
) -> IdentitySet:
    """The set of these images, stretched to `size`, by default 256 x 128.

    Training pads by a 25th of the height, crops, mirrors, and erases a rectangle of every other image. Up to
    `memory_limit` bytes the images are decoded once; beyond, in each epoch, normalised as ImageNet is.
    """
    for role in ROLES:
        if not shots.get(role):
            raise ValueError(f"{name} has no {role} images.")
    size = size or USUAL_SIZE
    train = [shot for shot in shots["train"] if shot.person != JUNK]
    test = shots["query"] + shots["gallery"]
    people = np.unique([shot.person for shot in train])
    labels = np.searchsorted(people, [shot.person for shot in train]).tolist()
    files = (
        _files(train, labels, size, max_unreadable),
        _files(test, [shot.person for shot in test], size, max_unreadable),
    )
    splits: tuple[Split, Split] = files
    cameras, queries = torch.tensor([shot.camera for shot in test]), len(shots["query"])
    mean, std = IMAGENET_MEAN, IMAGENET_STD
    if 3 * size[0] * size[1] * sum(map(len, files)) <= memory_limit:
        unreadable = Unreadable(max_unreadable)
        (held, _), (held_out, there) = (decoded(split, unreadable) for split in files)
        splits, cameras, queries = (held, held_out), cameras[there], int(there[:queries].sum())
        mean, std = channel_statistics(held.images)
    return IdentitySet(
        name=name,
        train=splits[0],
        test=splits[1],
        classes=tuple(f"{person:04d}" for person in people.tolist()),
        mean=mean,
        std=std,
        augmentation=Augmentation(shift=size[0] // 25, flip=True, border="black", erase=0.5),
        cameras=cameras,
        queries=queries,
    )


def _files(shots: list[Shot], labels: list[int], size: tuple[int, int], max_unreadable: int) -> OnDisk:
    paths = tuple(str(shot.path) for shot in shots)
    return OnDisk(paths, torch.tensor(labels, dtype=torch.int64), size, max_unreadable, stretch=True)


def named_shots(name: str, root: Path) -> Shots:
    """Market-1501 or DukeMTMC-reID in its official layout below `root`."""
    places = [root / place for place in PLACES[name]]
    for place in places:
        if place.is_dir():
            return folder_shots(place)
    raise FileNotFoundError(
        f"{name} is read from {places[0]} or {places[1].name} beside it, and neither exists. Give the root "
        "that holds it: --data-root. Its authors hand it out; nothing is downloaded."
    )


def is_identity_folder(path: Path) -> bool:
    """Whether `path` has a folder of queries, or holds images itself and no folders."""
    inner = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    return (path / "query").is_dir() or (
        not any(entry.is_dir() for entry in inner)
        and any(entry.suffix.lower() in SUFFIXES for entry in inner)
    )


def folder_shots(path: Path) -> Shots:
    """The images of a folder by role.

    It holds `bounding_box_train` (or `train`), `query` and `bounding_box_test` (or `gallery`); or images
    alone: then the first two thirds of the people train, one image asks for each of the others whom two
    cameras saw, and the rest is the gallery.
    """
    if not (path / "query").is_dir():
        return _split(read_names(path))
    found: Shots = {}
    for role, names in FOLDERS.items():
        there = [path / name for name in names if (path / name).is_dir()]
        if not there:
            raise FileNotFoundError(f"{path} has no folder {' or '.join(names)} for its {role} images.")
        found[role] = read_names(there[0])
    return found


def read_names(path: Path) -> list[Shot]:
    """The images in a folder, person and camera read from their names."""
    files = sorted(f for f in path.iterdir() if f.suffix.lower() in SUFFIXES and not f.name.startswith("."))
    if not files:
        raise ValueError(f"{path} has no images.")
    wrong = [file.name for file in files if parsed(file) is None]
    if wrong:
        raise ValueError(
            f"{len(wrong)} of the {len(files)} images in {path} are not named by person and camera, as "
            f"0002_c1s1_000451_03.jpg is; the first is {wrong[0]}. Rename them, or list them in a CSV with "
            "the columns file,pid,camera,role."
        )
    return [shot for file in files if (shot := parsed(file)) is not None]


def parsed(path: Path) -> Shot | None:
    """Person and camera by the name of a file, None where it does not tell."""
    found = NAME.match(path.name)
    return None if found is None else Shot(path, int(found[1]), int(found[2]))


def _split(shots: list[Shot]) -> Shots:
    people = sorted({shot.person for shot in shots} - {JUNK})
    trained = set(people[: round(TRAINED * len(people))])
    found: Shots = {"train": [shot for shot in shots if shot.person in trained], "query": [], "gallery": []}
    cameras: dict[int, set[int]] = {}
    for shot in shots:
        cameras.setdefault(shot.person, set()).add(shot.camera)
    to_ask = {person for person in people if person not in trained and len(cameras[person]) > 1}
    for shot in shots:
        if shot.person in to_ask:
            found["query"].append(shot)
            to_ask.remove(shot.person)
        elif shot.person not in trained:
            found["gallery"].append(shot)
    return found


def csv_shots(path: Path) -> Shots:
    """The images listed in a CSV file with the columns file, pid, camera and role (train, query or gallery).

    Files are named relative to the list and lie below its folder.
    """
    found: Shots = {role: [] for role in ROLES}
    with path.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        missing = sorted({"file", "pid", "camera", "role"} - set(reader.fieldnames or ()))
        if missing:
            raise ValueError(f"{path} needs the columns file,pid,camera,role; missing: {', '.join(missing)}.")
        for row in reader:
            role, shot = _listed(row, path, reader.line_num)
            found[role].append(shot)
    return found


def _listed(row: dict[str, str], path: Path, line: int) -> tuple[str, Shot]:
    root = path.parent.resolve()
    file = (root / (row["file"] or "")).resolve()
    try:
        shot = Shot(file, int(row["pid"]), int(row["camera"]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}, line {line}: pid and camera must be integers, got {row!r}.") from error
    if row["role"] not in ROLES:
        raise ValueError(f"{path}, line {line}: role must be one of {', '.join(ROLES)}, got {row['role']!r}.")
    if not file.is_relative_to(root):
        raise ValueError(f"{path}, line {line}: {row['file']} lies outside of {path.parent}. Move it there.")
    return row["role"], shot


def pictures(split: Split, indices: Int[np.ndarray, " n"]) -> UInt8[np.ndarray, "n h w c"]:
    """The images `indices` as bytes, to be shown."""
    if isinstance(split, InMemory):
        return split.images[torch.from_numpy(indices)].permute(0, 2, 3, 1).numpy()
    return np.stack([split.read(i) for i in indices.tolist()])
