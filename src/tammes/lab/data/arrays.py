"""Data sets from `.npz` files with x_train, y_train, x_test and y_test."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from tammes._common.checks import reading
from tammes._common.wording import few
from tammes.lab.data.augmentation import Augmentation
from tammes.lab.data.dataset import DataSet, InMemory, in_memory

KEYS = ("x_train", "y_train", "x_test", "y_test")

MOST_INFLATED, LEAST_LIMIT = 100, 2**28
"""Arrays may inflate to this multiple of the file, or to this many bytes: labels compress a thousandfold."""


def npz(
    path: Path,
    size: tuple[int, int] | None = None,
    classes: tuple[str, ...] | None = None,
    augmentation: Augmentation | None = None,
) -> DataSet:
    """Load a data set from a NumPy archive.

    Images are uint8 of shape (n, height, width), or with 1 or 3 channels, first or last. Labels are integers.
    The classes are the distinct labels of y_train in ascending order.

    Args:
        path: the file. It is read without pickle, so it cannot run code.
        size: height and width to resize the images to. Default: their own size.
        classes: class names in label order. Default: the labels themselves.
        augmentation: default: a shift of up to an eighth of the side, and a flip for color images.
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


def read_arrays(
    path: Path, needed: Sequence[str] = (), optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Read the `needed` arrays of a NumPy archive and any `optional` ones present; by default all.

    Other arrays are not decompressed. Each array is read, without pickle, only after its declared shape has
    been checked against its size in bytes.
    """
    if not path.is_file():
        raise FileNotFoundError(f"File {path} does not exist.")
    with reading(path, "Expected a complete .npz file."), zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        missing = [key for key in needed if key not in members]
        if missing:
            raise ValueError(f"{path} must contain {', '.join(needed)}; missing: {', '.join(missing)}.")
        wanted = [name for name in members if not needed or name in (*needed, *optional)]
        _check_total(path, sum(members[name].file_size for name in wanted))
        return {name: _array(path, archive, members[name]) for name in wanted}


def _check_total(path: Path, total: int) -> None:
    most = max(LEAST_LIMIT, MOST_INFLATED * path.stat().st_size)
    if total > most:
        raise ValueError(
            f"{path} would inflate to {total:,} bytes, more than {MOST_INFLATED} times its size. If that is "
            "intended, save it uncompressed with numpy.savez."
        )


def _array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read one array after checking that its header matches the bytes that follow."""
    name = member.filename.removesuffix(".npy")
    with archive.open(member) as file:
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[np.lib.format.read_magic(file)]
        shape, _, dtype = read_header(file)
        size = member.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(
            f"{path} contains Python objects, which are not loaded because they can run code. "
            "Save plain arrays, with integer labels."
        )
    if dtype.kind not in "biufcSU" or not dtype.itemsize:
        raise ValueError(f"{path}: {name} must contain numbers or text, got {dtype}.")
    fits = min(shape, default=0) >= 0 and math.prod(shape) * dtype.itemsize == size
    if not fits or (not size and max(shape) > LEAST_LIMIT):
        raise ValueError(f"{path}: {name} is declared as {dtype} of shape {shape}, but has {size} bytes.")
    with archive.open(member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    if dtype.kind == "U" and array.size:
        letters = np.ascontiguousarray(array).reshape(-1).astype(dtype.newbyteorder("=")).view(np.uint32)
        if ((letters > 0x10FFFF) | (letters >> 11 == 0x1B)).any():  # surrogates are not characters
            raise ValueError(f"{path}: {name} holds text that cannot be decoded.")
    return array


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
    """Map labels to their positions in the sorted `values`."""
    given, n = stored[key], len(stored[key.replace("y", "x")])
    if given.dtype.kind not in "iu" or given.size != n:
        raise ValueError(
            f"{path}: {key} must be {n} integers, one per image, got {given.dtype} of shape {given.shape}."
        )
    flat = given.reshape(n)
    unseen = np.setdiff1d(flat, values)
    if len(unseen):
        raise ValueError(
            f"{path}: {key} has classes that y_train lacks: {few(list(map(str, unseen.tolist())))}. "
            "Remove them or add training images."
        )
    return torch.from_numpy(np.searchsorted(values, flat))
