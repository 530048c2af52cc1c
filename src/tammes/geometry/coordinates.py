"""Read and write coordinates of packings, in the format of public tables."""

import io
import re
from pathlib import Path

import numpy as np
import torch

from tammes._common.checks import reading
from tammes._common.files import write_bytes
from tammes._common.types import Prototypes
from tammes.geometry._point_checks import checked_suffix, on_sphere


def read_points(path: Path, k: int, d: int) -> Prototypes:
    """Read k points in d dimensions from a .npy file, or from a text file of k d numbers.

    The text may have one point per line, or one number per line as in N. J. A. Sloane's tables, separated by
    spaces or commas.
    """
    with reading(path, "Expected a complete .npy file, or text with numbers only."):
        values = _read_array(path) if path.suffix == ".npy" else _read_text(path)
    if values.size != k * d:
        raise ValueError(
            f"{path.name} must contain {k} points in {d} dimensions, {k * d} numbers, got {values.size}. "
            "Pass the K and D of the file."
        )
    return on_sphere(torch.from_numpy(values.reshape(k, d)), path.name)


def write_points(path: Path, points: Prototypes) -> None:
    """Write `points` to a .npy file, or to a .txt file with one point per line, in full precision."""
    checked_suffix(path)
    buffer = io.BytesIO()
    if path.suffix == ".npy":
        np.save(buffer, points.cpu().numpy(), allow_pickle=False)
    else:
        np.savetxt(buffer, points.cpu().numpy(), fmt="%.17g")
    write_bytes(path, buffer.getvalue())


def _read_array(path: Path) -> np.ndarray:
    values = np.load(path, mmap_mode="r", allow_pickle=False)  # a shape larger than the file is refused
    if values.dtype.kind not in "fiu":
        raise ValueError(f"{path} must contain real numbers, got {values.dtype}.")
    return values.astype(np.float64)


def _read_text(path: Path) -> np.ndarray:
    words = [word for word in re.split(r"[\s,]+", path.read_text(encoding="utf-8")) if word]
    try:
        return np.array([float(word) for word in words])
    except ValueError as error:
        raise ValueError(f"{path} must contain only numbers: {error}.") from None
