"""Load any data set by name or path."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tammes._common.checks import at_least, did_you_mean
from tammes.lab.data.arrays import npz
from tammes.lab.data.augmentation import Augmentation
from tammes.lab.data.dataset import DataSet, InMemory, in_memory, stratified
from tammes.lab.data.face_sets import has_pairs, lfw_view1, with_pairs
from tammes.lab.data.identities import (
    NAMED_FOLDERS,
    ShotsByRole,
    csv_shots,
    folder_shots,
    identity_set,
    is_identity_folder,
    named_shots,
)
from tammes.lab.data.image_folders import Size, common_size, folder
from tammes.lab.data.image_lists import lists
from tammes.lab.data.insightface_records import records
from tammes.lab.data.torchvision_sets import torchvision_set

CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
worm
"""
CIFAR_NAMES = {"cifar10": tuple(CIFAR10.split()), "cifar100": tuple(CIFAR100.split())}
"""Class names in label order, for archives, which do not store them."""

AUGMENTATIONS = {
    "mnist": Augmentation(shift=2),
    "fashion-mnist": Augmentation(shift=2, flip=True),
    "cifar10": Augmentation(shift=4, flip=True),
    "cifar100": Augmentation(shift=4, flip=True),
}
PADDED = Augmentation(shift=4, border="black", flip=True, alternate=False)
STANDARD = {
    "mnist": Augmentation(),
    "fashion-mnist": Augmentation(),
    "cifar10": PADDED,
    "cifar100": replace(PADDED, rotate=20.0),
}
"""The usual augmentation of papers: pad with black and crop, random flip, rotation. None for digits."""

STANDARD_FILES: dict[str, Any] = {"crop": 0.08, "alternate": False, "jitter": 0.4}
"""Augmentation of images read from disk, as in MiSLAS for ImageNet-LT."""

PHOTOS = Augmentation(crop=0.25, flip=True, alternate=False, trivial=True)
"""Augmentation of photos for fine-tuning: random resized crop, flip, TrivialAugment."""

NAMES = ("digits", *AUGMENTATIONS, *NAMED_FOLDERS, "lfw-view1")
"""Names of built-in data sets that `load` accepts; anything else is a path."""


def load(
    source: str | Path,
    *,
    root: str | Path = "data",
    download: bool = False,
    image_size: int | tuple[int, int] | None = None,
    size_of: Callable[[tuple[str, ...]], Size] = common_size,
    max_unreadable: int = 100,
    memory_limit: int = 2**30,
) -> DataSet:
    """Load a data set by name or path.

    Args:
        source: one of `NAMES`, an `.npz` file (see `npz`), a list (`*train*.txt`, see `lists`), a folder of
            images (see `folder`) or of insightface records (see `records`); for re-identification a folder
            (see `folder_shots`) or a `.csv` list (see `csv_shots`). Pair lists in a folder (pairs*.txt,
            pairs*.csv, *.bin) are loaded with it. A name takes precedence over a folder of that name: write
            ./digits for the folder.
        root: folder of named sets (`<name>.npz`, otherwise torchvision's layout) and of the images of lists.
        download: download a missing named set to `root`.
        image_size: side, or height and width. Images are resized to cover it and center-cropped. Images for
            re-identification are stretched instead; for them a single number is the height, twice the width.
        size_of: default image size of a folder, from its training files.
        max_unreadable: maximum number of unreadable image files to skip before failing.
        memory_limit: folders of images of up to this many decoded bytes are kept in memory.

    >>> load("digits", image_size=16).shape
    (1, 16, 16)
    """
    path = Path(source)
    shots = _shots(str(source), Path(root))
    if shots is not None:
        tall = (image_size, max(1, image_size // 2)) if isinstance(image_size, int) else image_size
        limits = {"max_unreadable": max_unreadable, "memory_limit": memory_limit}
        return identity_set(path.stem, shots, size=_as_size(tall), **limits)
    size = _as_size(image_size)
    if str(source) == "lfw-view1":
        return lfw_view1(Path(root), size, max_unreadable)
    if str(source) in NAMES:
        return _named(str(source), Path(root), download, size)
    if (path / "train.rec").is_file():
        return with_pairs(records(path, image_size=size, max_unreadable=max_unreadable), path)
    if path.is_dir():
        limits = {"max_unreadable": max_unreadable, "memory_limit": memory_limit}
        return with_pairs(folder(path, image_size=size, size_of=size_of, **limits), path)
    if path.suffix == ".npz" and path.is_file():
        return npz(path, size)
    if is_list(path):
        options = {"max_unreadable": max_unreadable, "memory_limit": memory_limit}
        return lists(path, Path(root), image_size=size, **options)
    if len(path.parts) > 1 or path.suffix or path.exists():
        state = (
            "is neither a folder nor an .npz or .csv file nor a list" if path.exists() else "does not exist"
        )
        raise FileNotFoundError(
            f"{source} {state}. Pass a folder of images, an .npz or .csv file, or one of: {', '.join(NAMES)}."
        )
    raise ValueError(
        f"Unknown data set {str(source)!r}: neither a known name nor a folder. "
        f"{did_you_mean(str(source), NAMES)}"
    )


def is_photo_folder(source: str | Path) -> bool:
    """Whether `load` treats `source` as class folders of photos, rather than people, faces or a named set."""
    path = Path(source)
    return (
        str(source) not in NAMES
        and path.is_dir()
        and not (path / "train.rec").is_file()
        and not is_identity_folder(path)
        and not has_pairs(path)
    )


def is_list(source: str | Path) -> bool:
    """Whether `load` treats `source` as a list of training images."""
    path = Path(source)
    return path.suffix == ".txt" and "train" in path.name and path.is_file()


def _shots(source: str, root: Path) -> ShotsByRole | None:
    """The re-identification images of `source`; None if it is another kind of set."""
    path = Path(source)
    if source in NAMED_FOLDERS:
        return named_shots(source, root)
    if source in NAMES:
        return None
    if path.is_dir() and is_identity_folder(path):
        return folder_shots(path)
    return csv_shots(path) if path.suffix == ".csv" and path.is_file() else None


def _named(name: str, root: Path, download: bool, size: tuple[int, int] | None) -> DataSet:
    if name == "digits":
        return _digits(size)
    archive = root / f"{name}.npz"
    if archive.is_file():
        return npz(archive, size, CIFAR_NAMES.get(name), AUGMENTATIONS[name])
    return torchvision_set(name, root, download, AUGMENTATIONS[name], size)


def _digits(size: tuple[int, int] | None) -> DataSet:
    """The 1,797 handwritten 8 x 8 digits of scikit-learn, rescaled from 0..16 to bytes.

    A fixed fifth of each class is test data.
    """
    from sklearn.datasets import load_digits

    grey, target = load_digits(return_X_y=True)
    images = np.round(grey * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    whole = InMemory(torch.from_numpy(images), torch.from_numpy(target).long())
    train, test = map(whole.select, stratified(whole.labels))
    return in_memory("digits", train, test, tuple("0123456789"), Augmentation(shift=1), size)


def _as_size(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return (at_least("image_size", height, 1), at_least("image_size", width, 1))
