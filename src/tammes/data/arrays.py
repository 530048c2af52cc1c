"""Any `.npz` file with x_train, y_train, x_test, y_test."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from tammes.data.augmentation import Augmentation
from tammes.data.dataset import DataSet, InMemory, few, in_memory

KEYS = ("x_train", "y_train", "x_test", "y_test")


def npz(
    path: Path,
    size: tuple[int, int] | None = None,
    classes: tuple[str, ...] | None = None,
    augmentation: Augmentation | None = None,
) -> DataSet:
    """The data set in a numpy archive.

    Images are uint8, (n, height, width) or with 1 or 3 channels last or first; labels are integers. The
    classes are the labels that occur in y_train, ascending; `classes` may name them.

    Args:
        path: the file; read without pickle, so it cannot run code.
        size: height and width to fit the images to; by default their own.
        classes: names in label order; by default the labels themselves.
        augmentation: by default a shift by up to an eighth of the side, and a flip of colour images.
    """
    stored = read_arrays(path, KEYS)
    x_train, x_test = _images(path, "x_train", stored), _images(path, "x_test", stored)
    values = np.unique(stored["y_train"])
    train, test = (
        InMemory(x, _labels(path, key, stored, values))
        for x, key in ((x_train, "y_train"), (x_test, "y_test"))
    )
    names = classes or tuple(map(str, values.tolist()))
    c, h, w = train.shape
    usual = Augmentation(shift=min(h, w) // 8, flip=c == 3)
    return in_memory(path.stem, train, test, names, augmentation or usual, size)


def read_arrays(path: Path, needed: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of a numpy archive, those `needed` among them; read without pickle."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is no .npz file")
        with np.load(path, allow_pickle=False) as archive:
            found = dict(archive)
    except Exception as error:  # a damaged archive raises nearly anything
        if "allow_pickle" in str(error):
            raise ValueError(
                f"{path} holds Python objects, which are not loaded as they can run code. "
                "Save plain arrays, labels as integers."
            ) from error
        raise ValueError(f"{path} cannot be read as a numpy archive: {error}. Was it cut short?") from error
    missing = [key for key in needed if key not in found]
    if missing:
        raise ValueError(f"{path} must hold {', '.join(needed)}; missing: {', '.join(missing)}.")
    return found


def _images(path: Path, key: str, stored: dict[str, np.ndarray]) -> Tensor:
    array = stored[key]
    if array.dtype != np.uint8:
        raise ValueError(
            f"{path}: {key} must be uint8, 0 to 255, got {array.dtype}. "
            "Scale and convert: (255 * x).round().astype('uint8') for x in [0, 1]."
        )
    if array.ndim == 3:
        return torch.from_numpy(array)[:, None]
    if array.ndim == 4 and array.shape[3] in (1, 3):
        return torch.from_numpy(array).permute(0, 3, 1, 2)
    if array.ndim == 4 and array.shape[1] in (1, 3):
        return torch.from_numpy(array).contiguous(memory_format=torch.channels_last)
    raise ValueError(
        f"{path}: {key} must have shape (n, height, width), (n, height, width, 1 or 3) or "
        f"(n, 1 or 3, height, width), got {array.shape}."
    )


def _labels(path: Path, key: str, stored: dict[str, np.ndarray], values: np.ndarray) -> Int64[Tensor, " n"]:
    """Labels as positions among the sorted `values`."""
    given, n = stored[key], len(stored[key.replace("y", "x")])
    if given.dtype.kind not in "iu" or given.size != n:
        raise ValueError(
            f"{path}: {key} must be {n} integers, one for each image, got {given.dtype} of shape "
            f"{given.shape}."
        )
    flat = given.reshape(n)
    unseen = np.setdiff1d(flat, values)
    if len(unseen):
        raise ValueError(
            f"{path}: {key} has classes that y_train has not: {few(list(map(str, unseen.tolist())))}. "
            "Remove them or add training images."
        )
    return torch.from_numpy(np.searchsorted(values, flat))
