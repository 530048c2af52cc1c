"""Images named by list files, as ImageNet-LT and iNaturalist come: a path and a class number a line."""

from pathlib import Path, PurePosixPath

import torch

from tammes.data.dataset import DataSet, few
from tammes.data.folders import Listed, from_files

TEST_WORDS = ("test", "val")


def lists(
    path: Path,
    root: Path,
    *,
    image_size: tuple[int, int] | None = None,
    max_unreadable: int = 100,
    memory_limit: int = 2**30,
) -> DataSet:
    """The images that a training list names below `root`, and those of the test list beside it.

    A line is `train/n01440764/n01440764_190.JPEG 0`: a path below `root`, a blank, the number of the class.
    The test list has the same name with "test" or "val" for "train": for `ImageNet_LT_train.txt`,
    `ImageNet_LT_test.txt` is taken first. Classes bear the name of the folder of their training images
    where each has one of its own, otherwise their number.

    Args:
        path: the training list, with "train" in its name.
        root: folder of the images.
        image_size, max_unreadable, memory_limit: as of `folder`.
    """
    beside = _test_list(path)
    train, test = _read(path, root), _read(beside, root)
    labels = [label for _, label in train]
    missing = sorted(set(range(max(labels) + 1)) - set(labels))
    if missing:
        raise ValueError(f"{path} has no image of class {missing[0]}, but one of {max(labels)}.")
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
        raise ValueError(f'A list of training images has "train" in its name, got {path}.')
    names = [path.with_name(path.name.replace("train", word)) for word in TEST_WORDS]
    found = [name for name in names if name.is_file()]
    if not found:
        wanted = " or ".join(map(str, names))
        raise FileNotFoundError(f"{path} needs a list of test images beside it: {wanted}.")
    return found[0]


def _read(path: Path, root: Path) -> list[tuple[Path, int]]:
    """Image files and class numbers; none may lie outside of `root` or be missing."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no list of images: {error}.") from error
    found = [_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ValueError(f"{path} names no image.")
    files = [(root / name, label) for name, label in found]
    missing = [str(file.relative_to(root)) for file, _ in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing):,} of the {len(files):,} images in {path} are not below {root}: {few(missing)}."
        )
    return files


def _line(path: Path, number: int, line: str) -> tuple[str, int]:
    name, _, label = line.strip().rpartition(" ")
    inside = PurePosixPath(name)
    if not name.strip() or not label.isdecimal():
        raise ValueError(f"{path}, line {number}: expected a path and a class number, got {line.strip()!r}.")
    if inside.is_absolute() or ".." in inside.parts:
        raise ValueError(f"{path}, line {number}: {name} leads out of the folder of images.")
    return name.strip(), int(label)


def _listed(files: list[tuple[Path, int]]) -> Listed:
    labels = torch.tensor([label for _, label in files], dtype=torch.int64)
    return tuple(str(file) for file, _ in files), labels


def _names(files: list[tuple[Path, int]]) -> tuple[str, ...]:
    """The folder of each class, where it is the only one and no other's; otherwise numbers."""
    folders: dict[int, set[str]] = {}
    for file, label in files:
        folders.setdefault(label, set()).add(file.parent.name)
    own = [next(iter(names)) for _, names in sorted(folders.items()) if len(names) == 1]
    if len(own) == len(set(own)) == len(folders):
        return tuple(own)
    return tuple(str(label) for label in sorted(folders))
