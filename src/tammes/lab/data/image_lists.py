"""Image lists in the format of ImageNet-LT and iNaturalist: a path and a class number per line."""

import itertools
from pathlib import Path, PurePosixPath

import torch

from tammes._common.wording import few
from tammes.lab.data.dataset import DataSet
from tammes.lab.data.image_folders import Listed, from_files
from tammes.lab.data.text_files import is_file, read_lines, whole_number

TEST_WORDS = ("test", "val")


def lists(
    path: Path,
    root: Path,
    *,
    image_size: tuple[int, int] | None = None,
    max_unreadable: int = 100,
    memory_limit: int = 2**30,
) -> DataSet:
    """Load the images of a training list, and of the test list next to it.

    A line reads `train/n01440764/n01440764_190.JPEG 0`: a path below `root`, a space, the class number. The
    test list has the same name with "test" or "val" in place of "train"; "test" is tried first. If the
    training images of each class share a folder of their own, it names the class; otherwise classes are named
    by number.

    Args:
        path: the training list, with "train" in its name.
        root: folder of the images.
        image_size, max_unreadable, memory_limit: see `folder`.
    """
    beside = _test_list(path)
    train, test = _read(path, root), _read(beside, root)
    labels = [label for _, label in train]
    there = set(labels)
    missing = next(number for number in itertools.count() if number not in there)
    if missing != len(there):
        raise ValueError(f"{path} has no image of class {missing}, but has class {max(labels)}.")
    if len(there) < 2:
        raise ValueError(f"{path} names images of only one class. Margins need at least 2 classes.")
    return from_files(
        path.stem.replace("_train", ""),
        _listed(train),
        _listed(test),
        _names(train),
        image_size=image_size,
        max_unreadable=max_unreadable,
        memory_limit=memory_limit,
    )


def _test_list(path: Path) -> Path:
    if "train" not in path.name:
        raise ValueError(f'A list of training images must have "train" in its name, got {path}.')
    names = [path.with_name(path.name.replace("train", word)) for word in TEST_WORDS]
    found = [name for name in names if name.is_file()]
    if not found:
        wanted = " or ".join(map(str, names))
        raise FileNotFoundError(f"{path} needs a list of test images next to it: {wanted}.")
    return found[0]


def _read(path: Path, root: Path) -> list[tuple[Path, int]]:
    """Image files and class numbers; raise if a file is missing or outside `root`."""
    lines = enumerate(read_lines(path), 1)
    found = [_line(path, number, line) for number, line in lines if line.strip()]
    if not found:
        raise ValueError(f"{path} names no image.")
    files = [(root / name, label) for name, label in found]
    missing = [str(file.relative_to(root)) for file, _ in files if not is_file(file)]
    if missing:
        raise FileNotFoundError(
            f"{len(missing):,} of the {len(files):,} images in {path} are not below {root}: {few(missing)}."
        )
    return files


def _line(path: Path, number: int, line: str) -> tuple[str, int]:
    name, _, label = line.strip().rpartition(" ")
    inside = PurePosixPath(name)
    number_of_class = whole_number(label)
    if not name.strip() or number_of_class is None:
        raise ValueError(f"{path}, line {number}: expected a path and a class number, got {line.strip()!r}.")
    if inside.is_absolute() or ".." in inside.parts:
        raise ValueError(f"{path}, line {number}: {name} points outside the image folder.")
    return name.strip(), number_of_class


def _listed(files: list[tuple[Path, int]]) -> Listed:
    labels = torch.tensor([label for _, label in files], dtype=torch.int64)
    return tuple(str(file) for file, _ in files), labels


def _names(files: list[tuple[Path, int]]) -> tuple[str, ...]:
    """The folder of each class, if classes and folders are one to one; otherwise class numbers."""
    folders: dict[int, set[str]] = {}
    for file, label in files:
        folders.setdefault(label, set()).add(file.parent.name)
    own = [next(iter(names)) for _, names in sorted(folders.items()) if len(names) == 1]
    if len(own) == len(set(own)) == len(folders):
        return tuple(own)
    return tuple(str(label) for label in sorted(folders))
