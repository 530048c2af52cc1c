"""Image folders: `class/xxx.jpg`, or `train/class/xxx.jpg` and `test/class/xxx.jpg`."""

import statistics
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from tammes._common.wording import few
from tammes.lab.data.augmentation import Augmentation
from tammes.lab.data.dataset import DataSet, InMemory, OnDisk, in_memory, stratified
from tammes.lab.data.images import IMAGE_SUFFIXES, Unreadable, open_image

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT_SIDE = 128

TEST_FOLDERS = ("test", "val", "valid", "validation", "eval")
"""Names of the folder of test images next to `train`. The first one that exists is used."""

SPLITS = {"train", *TEST_FOLDERS}
"""Folder names that denote a split rather than a class."""

Size = tuple[int, int]
Listed = tuple[tuple[str, ...], Tensor]
"""Image files and their labels."""


def common_size(paths: tuple[str, ...], default: int = DEFAULT_SIDE) -> Size:
    """The common size of a sample of the files if its sides are at most 128 pixels, otherwise the default."""
    sizes = set(sampled_sizes(paths))
    if len(sizes) == 1:
        (only,) = sizes
        if max(only) <= DEFAULT_SIDE:
            return only
    return (default, default)


def network_size(paths: tuple[str, ...], own: int) -> Size:
    """The size for a network that was pretrained on squares of side `own`.

    It is that side, or for smaller images the next multiple of 32 above their median shorter side, at least
    64: enlarging images costs time and adds no detail.
    """
    shorter = [min(size) for size in sampled_sizes(paths)] or [own]
    side = min(max(32 * -(-int(statistics.median(shorter)) // 32), 64), own)
    return (side, side)


def folder(
    path: Path,
    *,
    image_size: Size | None = None,
    size_of: Callable[[tuple[str, ...]], Size] = common_size,
    max_unreadable: int = 100,
    memory_limit: int = 2**30,
) -> DataSet:
    """Load a folder of RGB images with one subfolder per class. Classes are sorted by name.

    Without a folder of test images (one of `TEST_FOLDERS`) next to `train`, a fixed fifth of every class is
    the test split.

    Args:
        path: folder of the class folders, or of `train` and `test`.
        image_size: height and width. Default: what `size_of` makes of the training files.
        size_of: by default the common size of a sample of the images if its sides are at most 128 pixels,
            otherwise 128 x 128.
        max_unreadable: maximum number of unreadable image files to skip, each named in the log, before
            failing.
        memory_limit: sets of up to this many bytes are decoded once and kept in memory. Larger ones are
            decoded in each epoch, cropped at random in training, and standardized by ImageNet's statistics.
    """
    found = layout(path)
    for line in found.warnings:
        warnings.warn(line, stacklevel=3)
    made = from_files(
        path.resolve().name,
        found.train,
        found.test,
        found.classes,
        image_size=image_size or size_of(found.train[0]),
        max_unreadable=max_unreadable,
        memory_limit=memory_limit,
    )
    return replace(made, split_origin=found.split_origin)


def from_files(
    name: str,
    train: Listed,
    test: Listed,
    classes: tuple[str, ...],
    *,
    image_size: Size | None,
    max_unreadable: int,
    memory_limit: int,
) -> DataSet:
    """Build a data set from listed image files; see `folder` for the arguments."""
    size = image_size or common_size(train[0])
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


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a folder of photos holds.

    Args:
        train, test: files and labels.
        classes: class names, in label order.
        split_origin: where the test split comes from, in words.
        warnings: folders that are left out, one line each.
    """

    train: Listed
    test: Listed
    classes: tuple[str, ...]
    split_origin: str
    warnings: tuple[str, ...] = ()


def layout(path: Path) -> Layout:
    """List the image files of a folder: by class, or by split and class."""
    apart = path / "train"
    if not apart.is_dir() or not any(inner.is_dir() for inner in apart.iterdir()):
        # A folder of images called train is a class, as in bus/ car/ train/.
        return _held_out(*class_files(path), "a fifth of each class, held out at random")
    train, empty = class_files(apart)
    tests = [path / name for name in TEST_FOLDERS if (path / name).is_dir()]
    notes = (*empty, *_left_out(path, tests[1:]))
    if not tests:
        return _held_out(train, notes, "a fifth of each class of train/, held out at random")
    test, missing = class_files(tests[0])
    unseen = sorted(set(test) - set(train))
    if unseen:
        raise ValueError(
            f"{tests[0]} has classes that {apart} lacks: {few(unseen)}. Remove or add them there."
        )
    names = tuple(train)
    return Layout(
        train=_numbered(train, names),
        test=_numbered(test, names),
        classes=names,
        split_origin=f"the folder {tests[0].name}/",
        warnings=(*notes, *missing),
    )


def _left_out(path: Path, further: Sequence[Path]) -> list[str]:
    """A line for each folder next to `train` that is not used: further test folders, and unknown names."""
    lines = [f"{folder} is not used: there is another folder of test images." for folder in further]
    unknown = sorted(inner.name for inner in _folders(path) if inner.name not in SPLITS)
    if unknown:
        lines.append(
            f"Folders next to {path / 'train'} are not used: {few(unknown)}. The test images go into one of "
            f"{', '.join(TEST_FOLDERS)}."
        )
    return lines


def class_files(path: Path) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Image files of each class folder in `path`, both sorted by name, and a line if some are empty."""
    folders = _folders(path)
    if not folders:
        raise ValueError(
            f"No class folders in {path}; expected {path}/CLASS/image.jpg, or train/CLASS/image.jpg and "
            "test/CLASS/image.jpg in it."
        )
    found = {f.name: sorted(str(p) for p in f.rglob("*") if _is_image(p)) for f in folders}
    empty = [name for name, files in found.items() if not files]
    if len(empty) == len(found):
        raise ValueError(f"No images in the class folders of {path} ({', '.join(sorted(IMAGE_SUFFIXES))}).")
    lines = (f"Class folders without images in {path} are left out: {few(empty)}.",) if empty else ()
    return {name: files for name, files in found.items() if files}, lines


def _folders(path: Path) -> list[Path]:
    return sorted(f for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))


def folder_labels(root: Path, files: Sequence[Path]) -> list[str] | None:
    """The class folder of each file below `root`; None unless every file has one and they differ.

    >>> folder_labels(Path("a"), [Path("a/cat/1.jpg"), Path("a/dog/old/2.jpg")])
    ['cat', 'dog']
    >>> folder_labels(Path("a"), [Path("a/train/cat/1.jpg"), Path("a/test/dog/2.jpg")])
    ['cat', 'dog']
    """
    parts = [file.relative_to(root).parts for file in files]
    if all(len(inside) > 2 and inside[0] in SPLITS for inside in parts):
        parts = [inside[1:] for inside in parts]
    if any(len(inside) < 2 for inside in parts) or len({inside[0] for inside in parts}) < 2:
        return None
    return [inside[0] for inside in parts]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def _numbered(found: dict[str, list[str]], names: tuple[str, ...]) -> Listed:
    paths = tuple(p for name in names for p in found.get(name, ()))
    labels = [j for j, name in enumerate(names) for _ in found.get(name, ())]
    return paths, torch.tensor(labels, dtype=torch.int64)


def _held_out(found: dict[str, list[str]], notes: tuple[str, ...], origin: str) -> Layout:
    names = tuple(found)
    paths, labels = _numbered(found, names)
    train, test = ((tuple(paths[i] for i in part.tolist()), labels[part]) for part in stratified(labels))
    return Layout(train=train, test=test, classes=names, split_origin=origin, warnings=notes)


SAMPLED_FILES = 64


def sampled_sizes(paths: Sequence[str]) -> list[Size]:
    """Height and width of an even sample of up to about 64 files, without unreadable ones."""
    found = [image_size(path) for path in paths[:: max(1, len(paths) // SAMPLED_FILES)]]
    return [size for size in found if size is not None]


def image_size(path: str) -> tuple[int, int] | None:
    """Height and width from the file's header; None if it is unreadable."""
    try:
        with open_image(path) as image:
            return (image.height, image.width)
    except Exception:  # the file is counted and reported when it is decoded
        return None


def decoded(split: OnDisk, unreadable: Unreadable) -> tuple[InMemory, Bool[Tensor, " n"]]:
    """Decode `split` into memory without its unreadable images; also return the mask of readable ones."""
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
    files = tuple(path for path, read in zip(split.paths, kept.tolist(), strict=True) if read)
    return InMemory(images.permute(0, 3, 1, 2), split.labels[there], files), there
