"""Block-wise iteration over rows, and the precision for it."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool
from torch import Tensor

TILE_ROWS = 1024


def row_slices(length: int, *, start: int = 0) -> Iterator[slice]:
    """Consecutive slices of at most `TILE_ROWS` rows from `start` to `length`."""
    for first in range(start, length, TILE_ROWS):
        yield slice(first, min(first + TILE_ROWS, length))


def same_class(rows: slice, columns: slice, centers: int, like: Tensor) -> Bool[Tensor, "a b"] | None:
    """Which pairs of two slices of a weight's rows belong to one class; None if there is no such pair.

    Each class has `centers` adjacent rows.
    """
    if columns.start >= rows.stop + centers - 1 or rows.start >= columns.stop + centers - 1:
        return None
    one, other = (
        torch.arange(some.start, some.stop, device=like.device).div(centers, rounding_mode="floor")
        for some in (rows, columns)
    )
    return one[:, None] == other


def double(x: Tensor) -> Tensor:
    """`x` in float64, in which cosines resolve angles of 1e-7; autocast does not affect it.

    Apple GPUs do not support float64: there it is float32, which resolves angles of 1e-3.
    """
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)


def at_least_single(*tensors: Tensor) -> torch.dtype:
    """The promoted dtype of all `tensors`, at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype
