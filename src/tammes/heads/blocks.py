"""Blocks of classes and what is done to them: the pieces of the streamed forward and backward."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tammes.heads.workspace import Workspace
from tammes.losses.scores import Space
from tammes.losses.statistics import Plan

CHUNK = 64
"""Columns whose maximum is taken first, before it is asked which of them has it."""


@dataclass(frozen=True)
class Options:
    """How to stream, and what."""

    plan: Plan
    block_size: int
    kept: int  # classes whose similarities are kept for the backward
    fast_products: bool
    workspace: Workspace

    @property
    def in_place(self) -> bool:
        """With a single similarity its product is not needed again and may be overwritten."""
        return self.plan.spaces == ("cosine",)

    @property
    def exponentials(self) -> bool:
        """With a single scale too, the exponentials of the forward are all that the backward needs."""
        return self.in_place and len(self.plan.rests) == 1


class Kept(NamedTuple):
    """A block that the backward need not form again."""

    matrix: Tensor  # products, or the only similarity, or its exponentials
    shift: Tensor | None  # what was taken off each row before the exponential; None without one


@dataclass(frozen=True)
class Block:
    """Classes `start` to `stop`: their prototypes and inverse norms in the working precision."""

    start: int
    stop: int
    part: Tensor
    inverse: Tensor

    def columns(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Column of each target in this block, and whether it is there at all."""
        inside = (targets >= self.start) & (targets < self.stop)
        return (targets - self.start).clamp(0, self.stop - self.start - 1), inside

    def views(self, room: Tensor) -> list[Tensor]:
        """As many n x width matrices as `room` has blocks; the last block of classes is often narrower."""
        _, n, _ = room.shape
        width = self.stop - self.start
        return [part.view(-1)[: n * width].view(n, width) for part in room]


def blocks(weight: Tensor, inverse_norms: Tensor, dtype: torch.dtype, size: int) -> Iterator[Block]:
    """`weight` in blocks of `size` rows, none for an empty slice; the first pass fills `inverse_norms`."""
    for start in range(0, weight.shape[0], size or 1):
        stop = min(start + size, weight.shape[0])
        yield Block(start, stop, weight[start:stop].to(dtype), inverse_norms[start:stop])


def in_space(
    product: Tensor, space: Space, base: Space, block: Block, row_norms: Tensor, out: Tensor
) -> Tensor:
    """A block of the product as the similarity of `space`; in place where `out` is `product`."""
    if space == "raw":
        return product
    torch.mul(product, block.inverse, out=out)
    if space == "cosine" and base != "cosine":
        out.div_(row_norms[:, None])
    return out


def first_maximum(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`matrix.max(1)`: in two steps, since finding the place is several times slower than the value."""
    n, width = matrix.shape
    if width % CHUNK:
        return matrix.max(1)
    chunks = matrix.view(n, -1, CHUNK)
    value, chunk = chunks.amax(2).max(1)
    inside = chunks.gather(1, chunk[:, None, None].expand(n, 1, CHUNK)).squeeze(1).argmax(1)
    return value, chunk * CHUNK + inside


def overwrite(matrix: Tensor, columns: Tensor, inside: Tensor, value: float) -> None:
    """Set the entries at `columns` that are `inside`; one column at a time, since two may be the same."""
    for column, here in zip(columns.split(1, 1), inside.split(1, 1), strict=True):
        matrix.scatter_(1, column, torch.where(here, value, matrix.gather(1, column)))


def increase(matrix: Tensor, columns: Tensor, inside: Tensor, values: Tensor) -> None:
    """Add `values` to the entries at `columns` that are `inside`; a row at a time, so deterministic."""
    parts = (columns.split(1, 1), inside.split(1, 1), values.split(1, 1))
    for column, here, value in zip(*parts, strict=True):
        matrix.scatter_(1, column, matrix.gather(1, column) + torch.where(here, value, 0.0))


def multiply(left: Tensor, right: Tensor, out: Tensor, fast: bool) -> Tensor:
    """`left @ right` into `out`; with `fast` in autocast's dtype."""
    if not fast:
        return torch.mm(left, right, out=out)
    half = torch.get_autocast_dtype(left.device.type)
    return out.copy_(left.to(half) @ right.to(half))
