"""Walking over pairs of rows piece by piece, and the precision to do it in."""

from collections.abc import Iterator

import torch
from torch import Tensor

TILE = 1024


def blocks(length: int, *, start: int = 0) -> Iterator[slice]:
    """Slices of at most `TILE` rows that cover `start` to `length` in order."""
    for first in range(start, length, TILE):
        yield slice(first, min(first + TILE, length))


def double(x: Tensor) -> Tensor:
    """`x` in float64, the precision that tells angles of 1e-7 apart by their cosines; no autocast touches it.

    Apple's GPUs have no float64: there it is float32, which tells angles of 1e-3 apart.
    """
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)


def at_least_single(*tensors: Tensor) -> torch.dtype:
    """The dtype that holds all `tensors`, and never half precision."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype
