"""Any folder of images: `class/xxx.jpg`, or `train/class/xxx.jpg` and `test/class/xxx.jpg`."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from PIL import Image
from torch import Tensor

from tammes.data.augmentation import Augmentation
from tammes.data.dataset import DataSet, InMemory, OnDisk, few, in_memory, stratified
from tammes.data.images import SUFFIXES, Unreadable

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT_SIDE = 128


def folder(
    path: Path,
    *,
    image_size: tuple[int, int] | None = None,
    max_unreadable: int = 100,
    memory_limit: int = 2**30,
) -> DataSet:
    """The images below `path`, RGB, one class for each folder of images, classes in the order of their names.

    Without a `test` (or `val`) folder beside `train`, a fixed fifth of every class is for testing.

    Args:
        path: holds the class folders, or `train` and `test` that do.
        image_size: height and width; by default the images' own if they share one of at most 128 pixels
            a side, as far as a sample of them shows, and 128 x 128 otherwise.
        max_unreadable: so many broken files are skipped and named in the log; more are an error.
        memory_limit: up to so many bytes the set is decoded once and kept in memory; beyond it, files are
            read anew in each epoch, cropped at random for training, and normalised by ImageNet's statistics.
    """
    train, test, classes = _listed(path)
    return from_files(
        path.resolve().name,
        train,
        test,
        classes,
        image_size=image_size,
        max_unreadable=max_unreadable,
        memory_limit=memory_limit,
    )


Listed = tuple[tuple[str, ...], Tensor]
"""Image files and their labels."""


def from_files(
    name: str,
    train: Listed,
    test: Listed,
    classes: tuple[str, ...],
    *,
    image_size: tuple[int, int] | None,
    max_unreadable: int,
    memory_limit: int,
) -> DataSet:
    """The data set of listed image files; see `folder` for its settings."""
    size = image_size or _common_size(train[0])
    splits = [OnDisk(paths, labels, size, max_unreadable) for paths, labels in (train, test)]
    if 3 * size[0] * size[1] * sum(map(len, splits)) <= memory_limit:
        unreadable = Unreadable(max_unreadable)
        held = [decoded(split, unreadable)[0] for split in splits]
        moves = Augmentation(shift=min(size) // 8, flip=True)
        return in_memory(name, held[0], held[1], classes, moves)
    return DataSet(
        name=name,
        train=splits[0],
        test=splits[1],
        classes=classes,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        augmentation=Augmentation(flip=True, crop=0.35),
    )


def _listed(path: Path) -> tuple[Listed, Listed, tuple[str, ...]]:
    """Files and labels to train on, those to test on, class names."""
    apart = path / "train"
    if not apart.is_dir() or not any(inner.is_dir() for inner in apart.iterdir()):
        return _held_out(
            class_files(path)
        )  # a folder of images named train is a class, as in bus/ car/ train/
    train = class_files(apart)
    tests = [path / name for name in ("test", "val") if (path / name).is_dir()]
    if not tests:
        return _held_out(train)
    test = class_files(tests[0])
    unseen = sorted(set(test) - set(train))
    if unseen:
        raise ValueError(
            f"{tests[0]} has classes that {apart} has not: {few(unseen)}. Remove or add them there."
        )
    names = tuple(train)
    return _numbered(train, names), _numbered(test, names), names


def class_files(path: Path) -> dict[str, list[str]]:
    """The image files of each class folder in `path`, both sorted by name."""
    folders = sorted(f for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))
    if not folders:
        raise ValueError(
            f"{path} has no class folders. Lay images out as class/xxx.jpg, or train/class/xxx.jpg and "
            "test/class/xxx.jpg."
        )
    found = {f.name: sorted(str(p) for p in f.rglob("*") if _is_image(p)) for f in folders}
    empty = [name for name, files in found.items() if not files]
    if empty:
        raise ValueError(
            f"{path} has class folders without images: {few(empty)}. Remove or fill them "
            f"({', '.join(sorted(SUFFIXES))})."
        )
    return found


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _numbered(found: dict[str, list[str]], names: tuple[str, ...]) -> Listed:
    paths = tuple(p for name in names for p in found.get(name, ()))
    labels = [j for j, name in enumerate(names) for _ in found.get(name, ())]
    return paths, torch.tensor(labels, dtype=torch.int64)


def _held_out(found: dict[str, list[str]]) -> tuple[Listed, Listed, tuple[str, ...]]:
    names = tuple(found)
    paths, labels = _numbered(found, names)
    train, test = ((tuple(paths[i] for i in part.tolist()), labels[part]) for part in stratified(labels))
    return train, test, names


def _common_size(paths: tuple[str, ...]) -> tuple[int, int]:
    """The size that a sample of up to 64 files share if it is small, otherwise the default."""
    sizes = {_size(p) for p in paths[:: max(1, len(paths) // 64)]} - {None}
    if len(sizes) == 1:
        (only,) = sizes
        if only is not None and max(only) <= DEFAULT_SIDE:
            return only
    return (DEFAULT_SIDE, DEFAULT_SIDE)


def _size(path: str) -> tuple[int, int] | None:
    """Height and width from the file's header, None where it cannot be read."""
    try:
        with Image.open(path) as image:
            return (image.height, image.width)
    except Exception:  # the file is counted and named when it is decoded
        return None


def decoded(split: OnDisk, unreadable: Unreadable) -> tuple[InMemory, Bool[Tensor, " n"]]:
    """All images of `split` in memory, without the unreadable ones; which ones are there."""
    pixels = np.empty((len(split), *split.size, 3), np.uint8)
    kept = np.ones(len(split), dtype=bool)
    with ThreadPoolExecutor() as pool:
        for i, image in enumerate(pool.map(split.read, range(len(split)))):
            if isinstance(image, str):
                kept[i] = False
                unreadable.note(split.paths[i], image)
            else:
                pixels[i] = image
    images, there = torch.from_numpy(pixels if kept.all() else pixels[kept]), torch.from_numpy(kept)
    return InMemory(images.permute(0, 3, 1, 2), split.labels[there]), there
