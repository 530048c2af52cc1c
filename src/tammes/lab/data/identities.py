"""Person re-identification: Market-1501, DukeMTMC-reID, and sets with the same layout or a CSV list.

File names give person and camera: `0002_c1s1_000451_03.jpg` is person 2, camera 1. Person -1 is junk: it is
not trained on, and is ignored in the gallery. Person 0 is a distractor: no query has that identity, so it is
a wrong match in every ranking and needs no special case.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Int64, UInt8
from torch import Tensor

from tammes.lab.data.augmentation import Augmentation
from tammes.lab.data.dataset import DataSet, InMemory, OnDisk, Split, channel_statistics
from tammes.lab.data.image_folders import IMAGENET_MEAN, IMAGENET_STD, decoded
from tammes.lab.data.images import IMAGE_SUFFIXES, Unreadable
from tammes.lab.data.text_files import DIGITS, below, read_csv, whole_number
from tammes.metrics.retrieval import JUNK

ROLES = ("train", "query", "gallery")
FOLDERS = {
    "train": ("bounding_box_train", "train"),
    "query": ("query",),
    "gallery": ("bounding_box_test", "gallery"),
}
NAMED_FOLDERS = {
    "market1501": ("Market-1501-v15.09.15", "market1501"),
    "dukemtmc-reid": ("DukeMTMC-reID", "dukemtmc-reid"),
}
"""Named sets, and their possible folders below the data root."""

NAME = re.compile(rf"(-?\d{{1,{DIGITS}}})_c(\d{{1,{DIGITS}}})(?!\d)")
USUAL_SIZE = (256, 128)
TRAINED = 2 / 3
"""Fraction of training identities when one flat folder is split."""


class Shot(NamedTuple):
    """One image: file, person, camera."""

    path: Path
    person: int
    camera: int


ShotsByRole = dict[str, list[Shot]]


@dataclass(frozen=True, eq=False, kw_only=True)
class IdentitySet(DataSet):
    """Training identities, with queries and a gallery of other people.

    The test images are the queries followed by the gallery. Their labels are identities unseen in training,
    not classes.

    Args:
        cameras: camera of each test image.
        queries: number of queries, which come first among the test images.
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
    shots: ShotsByRole,
    *,
    size: tuple[int, int] | None = None,
    max_unreadable: int = 100,
    memory_limit: int = 2**30,
) -> IdentitySet:
    """Build the set of these images, stretched to `size` (default 256 x 128).

    Training pads by 1/25 of the height and crops, flips, and erases a rectangle with probability 0.5. Sets of
    up to `memory_limit` bytes are decoded once and kept in memory. Larger ones are decoded in each epoch and
    standardized by ImageNet's statistics.
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


def named_shots(name: str, root: Path) -> ShotsByRole:
    """Market-1501 or DukeMTMC-reID in its official layout below `root`."""
    places = [root / place for place in NAMED_FOLDERS[name]]
    for place in places:
        if place.is_dir():
            return folder_shots(place)
    raise FileNotFoundError(
        f"{name} is read from {places[0]} or {places[1].name} next to it, and neither exists. Set "
        "--data-root to the folder that contains it. It is not downloaded: ask its authors for it."
    )


def is_identity_folder(path: Path) -> bool:
    """Whether `path` has a query folder, or contains only images, at least one named by person and camera."""
    inner = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    return (path / "query").is_dir() or (
        not any(entry.is_dir() for entry in inner)
        and any(entry.suffix.lower() in IMAGE_SUFFIXES and parsed(entry) for entry in inner)
    )


def folder_shots(path: Path) -> ShotsByRole:
    """List the images of a folder by role.

    The folder contains `bounding_box_train` (or `train`), `query` and `bounding_box_test` (or `gallery`). A
    flat folder of images is split by person: the first two thirds are for training. Each other person seen by
    two cameras gives one query, and the remaining images are the gallery.
    """
    if not (path / "query").is_dir():
        return _split(read_names(path))
    found: ShotsByRole = {}
    for role, names in FOLDERS.items():
        there = [path / name for name in names if (path / name).is_dir()]
        if not there:
            raise FileNotFoundError(f"{path} has no folder {' or '.join(names)} for its {role} images.")
        found[role] = read_names(there[0])
    return found


def read_names(path: Path) -> list[Shot]:
    """List the images of a folder, with person and camera parsed from the file names."""
    files = sorted(
        f for f in path.iterdir() if f.suffix.lower() in IMAGE_SUFFIXES and not f.name.startswith(".")
    )
    if not files:
        raise ValueError(f"{path} has no images.")
    wrong = [file.name for file in files if parsed(file) is None]
    if wrong:
        raise ValueError(
            f"{len(wrong)} of the {len(files)} images in {path} are not named by person and camera like "
            f"0002_c1s1_000451_03.jpg; the first is {wrong[0]}. Rename them, or list them in a CSV with "
            "the columns file,pid,camera,role."
        )
    return [shot for file in files if (shot := parsed(file)) is not None]


def parsed(path: Path) -> Shot | None:
    """Parse person and camera from a file name; None if it does not contain them."""
    found = NAME.match(path.name)
    return None if found is None else Shot(path, int(found[1]), int(found[2]))


def _split(shots: list[Shot]) -> ShotsByRole:
    people = sorted({shot.person for shot in shots} - {JUNK})
    trained = set(people[: round(TRAINED * len(people))])
    found: ShotsByRole = {
        "train": [shot for shot in shots if shot.person in trained],
        "query": [],
        "gallery": [],
    }
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


def csv_shots(path: Path) -> ShotsByRole:
    """Read a CSV list with the columns file, pid, camera and role (train, query or gallery).

    File paths are relative to the folder of the list and must not leave it.
    """
    found: ShotsByRole = {role: [] for role in ROLES}
    for line, row in read_csv(path, ("file", "pid", "camera", "role")):
        role, shot = _listed(row, path, line)
        found[role].append(shot)
    return found


def _listed(row: dict[str, str], path: Path, line: int) -> tuple[str, Shot]:
    person, camera = (whole_number(row[name].strip().removeprefix("-")) for name in ("pid", "camera"))
    if person is None or camera is None:
        raise ValueError(f"{path}, line {line}: pid and camera must be integers, got {row!r}.")
    if row["role"] not in ROLES:
        raise ValueError(f"{path}, line {line}: role must be one of {', '.join(ROLES)}, got {row['role']!r}.")
    file = below(path.parent, row["file"])
    if file is None:
        raise ValueError(f"{path}, line {line}: {row['file']} lies outside {path.parent}. Move it there.")
    return row["role"], Shot(file.absolute(), int(row["pid"]), int(row["camera"]))


def pictures(split: Split, indices: Int[np.ndarray, " n"]) -> UInt8[np.ndarray, "n h w c"]:
    """The images `indices` as bytes, for display."""
    if isinstance(split, InMemory):
        return split.images[torch.from_numpy(indices)].permute(0, 2, 3, 1).numpy()
    return np.stack([split.read(i) for i in indices.tolist()])
