"""The one door: a name or a path to a data set."""

from pathlib import Path

from tammes.checks import at_least, nearest
from tammes.data.arrays import npz
from tammes.data.augmentation import Augmentation
from tammes.data.dataset import DataSet
from tammes.data.digits import digits
from tammes.data.faces import lfw_view1, with_pairs
from tammes.data.folders import folder
from tammes.data.identities import (
    PLACES,
    Shots,
    csv_shots,
    folder_shots,
    identity_set,
    is_identity_folder,
    named_shots,
)
from tammes.data.lists import lists
from tammes.data.records import records
from tammes.data.torchvision_sets import CLASSES, torchvision_set

CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
AUGMENTATIONS = {
    "mnist": Augmentation(shift=2),
    "fashion-mnist": Augmentation(shift=2, flip=True),
    "cifar10": Augmentation(shift=4, flip=True),
    "cifar100": Augmentation(shift=4, flip=True),
    "tinyimagenet100": Augmentation(shift=4, flip=True),
}
NAMES = ("digits", *AUGMENTATIONS, *PLACES, "lfw-view1")


def load(
    source: str | Path,
    *,
    root: str | Path = "data",
    download: bool = False,
    image_size: int | tuple[int, int] | None = None,
    max_unreadable: int = 100,
    memory_limit: int = 2**30,
) -> DataSet:
    """The data set that `source` names, or that lies there.

    Args:
        source: one of `NAMES`, an `.npz` file (see `npz`), a list (`*train*.txt`, see `lists`), a folder of
            images (see `folder`) or of insightface's records (see `records`), which lists of pairs in it join
            (pairs*.txt, pairs*.csv, *.bin); of people seen by cameras a folder (see `folder_shots`) or a
            `.csv` list (see `csv_shots`). A name wins over a folder of that name: write ./digits for it.
        root: where named sets lie, `<name>.npz` first, then torchvision's layout; and the images of lists.
        download: fetch a missing named set from its public address into `root`.
        image_size: side, or height and width, that images are scaled to cover and cut to at the centre;
            images of people are stretched, and for them one number is the height, twice the width.
        max_unreadable: number of broken image files that are skipped; more are an error.
        memory_limit: bytes up to which a folder of images is decoded once and held in memory.

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
        images = folder(path, image_size=size, max_unreadable=max_unreadable, memory_limit=memory_limit)
        return with_pairs(images, path)
    if path.suffix == ".npz" and path.is_file():
        return npz(path, size)
    if path.suffix == ".txt" and "train" in path.name and path.is_file():
        options = {"max_unreadable": max_unreadable, "memory_limit": memory_limit}
        return lists(path, Path(root), image_size=size, **options)
    if len(path.parts) > 1 or path.suffix or path.exists():
        state = (
            "is neither a folder nor an .npz or .csv file nor a list" if path.exists() else "does not exist"
        )
        raise FileNotFoundError(
            f"{source} {state}. Give a folder of images, an .npz or .csv file, or one of: {', '.join(NAMES)}."
        )
    raise ValueError(
        f"Unknown data set {str(source)!r}: neither a known name nor a folder. {nearest(str(source), NAMES)}"
    )


def _shots(source: str, root: Path) -> Shots | None:
    """The images of people that `source` names or holds, None where it is no such set."""
    path = Path(source)
    if source in PLACES:
        return named_shots(source, root)
    if source in NAMES:
        return None
    if path.is_dir() and is_identity_folder(path):
        return folder_shots(path)
    return csv_shots(path) if path.suffix == ".csv" and path.is_file() else None


def _named(name: str, root: Path, download: bool, size: tuple[int, int] | None) -> DataSet:
    if name == "digits":
        return digits(size)
    archive = root / f"{name}.npz"
    if archive.is_file():
        return npz(archive, size, CIFAR10_NAMES if name == "cifar10" else None, AUGMENTATIONS[name])
    if name in CLASSES:
        return torchvision_set(name, root, download, AUGMENTATIONS[name], size)
    raise FileNotFoundError(
        f"{name} is read from {archive}, which does not exist. Give the root that holds {archive.name}."
    )


def _as_size(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return (at_least("image_size", height, 1), at_least("image_size", width, 1))
