"""Blocks of classes and the operations on them, shared by the streamed forward and backward passes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from tammes._common import tensor_checks
from tammes.heads._stream.workspace import Workspace
from tammes.losses._engine.plan import Plan, PrototypeSum, SimilaritySum
from tammes.losses._engine.rival_logits import Rest
from tammes.losses.scores import Space

ROW_TILE_ELEMENTS = 2**17
"""Entries of a few rows of a block: a map of similarities needs several tensors of this size."""

CHUNK = 64
"""Columns whose maximum is taken together; other widths are not vectorized and several times slower."""

NARROW = 1024
"""Columns up to which a single search is faster than one in two steps, which takes a dozen operations."""

FEW = 2**21
"""Entries of a matrix up to which the same holds on a CPU, where one thread searches: see `_first_place`."""


@dataclass(frozen=True)
class Options:
    """Settings of a streamed pass."""

    plan: Plan
    block_size: int
    kept: int  # classes whose similarities are kept for the backward
    fast_products: bool
    workspace: Workspace
    learned: tuple[Rest, ...] = ()  # rests whose scales need gradients
    all_inside: bool = False  # whether all targets are known to have a column: those of a shard need not

    def keeping(self, kept: int, block_size: int) -> "Options":
        """A copy with the similarities of `kept` classes kept, and with blocks of this size."""
        return replace(self, kept=kept, block_size=block_size)

    @cached_property
    def in_place(self) -> bool:
        """Whether there is a single similarity, whose product may then be overwritten."""
        return self.plan.spaces == ("cosine",)

    @cached_property
    def exponentials(self) -> bool:
        """Whether there is a single rest, so that the backward pass needs only the exponentials."""
        if not self.in_place or len(self.plan.rests) != 1 or self.plan.rival_sums:
            return False
        return self.plan.logits_of(self.plan.rests[0]).labels in (None, 1)

    def of_rows(self, rows: slice) -> "Options":
        """The same for some of the rows."""
        return replace(self, plan=self.plan.of_rows(rows))


class Inputs(NamedTuple):
    """The tensors that a pass over the classes reads."""

    rows: Tensor  # embeddings as they enter the plan's product space
    row_norms: Tensor
    weight: Tensor
    targets: Tensor


class KeptBlock(NamedTuple):
    """A block that the backward pass need not recompute; matrices are in the kept buffer."""

    matrix: Tensor  # products, the only similarity, or its exponentials over the norms
    beats: list[Tensor]  # see `Product`
    shift: Tensor | None  # subtracted from each row before the exponential; None without one


class Kept(NamedTuple):
    """The first blocks, kept by the forward pass for the backward pass, and their buffer."""

    blocks: list[KeptBlock]
    buffer: Tensor


Inside = Tensor | None
"""Whether each target is in a block, (n, t); None if all are known to be."""


@dataclass(frozen=True)
class Block:
    """Prototypes `start` to `stop` and their inverse norms in the working precision; classes are whole."""

    start: int
    stop: int
    part: Tensor
    inverse: Tensor
    centers: int = 1  # prototypes per class
    has_all: bool = False  # whether all targets are known to be in the block

    @property
    def classes(self) -> slice:
        """The slice of the block's classes in a table of all classes."""
        return slice(self.start // self.centers, self.stop // self.centers)

    def by_center(self, of_prototypes: Tensor) -> list[Tensor]:
        """A tensor with a row per prototype as one per prototype of a class, with a row per class."""
        if self.centers == 1:
            return [of_prototypes]
        return list(of_prototypes.unflatten(0, (-1, self.centers)).unbind(1))

    def columns(self, targets: Tensor) -> tuple[Tensor, Inside]:
        """Column of each target in this block, and whether it is in the block."""
        if self.has_all:
            return targets, None
        first, last = self.classes.start, self.classes.stop
        inside = (targets >= first) & (targets < last)
        return (targets - first).clamp(0, last - first - 1), inside

    def coefficients(self, which: PrototypeSum, plan: Plan) -> Tensor | None:
        """The factor of each prototype in a sum over prototypes; None for 1."""
        inverse = None if which.space == "raw" else self.inverse
        weight = self.class_weight(which, plan)
        if weight is None or inverse is None:
            return inverse if weight is None else weight
        return weight * inverse

    def class_weight(self, which: PrototypeSum | SimilaritySum, plan: Plan) -> Tensor | None:
        """The weight of each class in a sum; None for 1."""
        if not which.weighted:
            return None
        assert plan.class_weight is not None
        return plan.class_weight[self.classes]

    def views(self, room: Tensor) -> list[Tensor]:
        """One matrix with a column per class in each part of `room`; the last block is often narrower."""
        _, n, _ = room.shape
        width = self.classes.stop - self.classes.start
        return [part.view(-1)[: n * width].view(n, width) for part in room]


def blocks(weight: Tensor, inverse_norms: Tensor, dtype: torch.dtype, options: Options) -> Iterator[Block]:
    """`weight` in blocks of rows, none for an empty slice; the first pass fills `inverse_norms`."""
    k, size, centers = len(weight), options.block_size, options.plan.centers
    if 0 < k <= size:
        yield Block(0, k, weight.to(dtype), inverse_norms, centers, options.all_inside)
        return
    for start in range(0, k, size):
        stop = min(start + size, k)
        yield Block(start, stop, weight[start:stop].to(dtype), inverse_norms[start:stop], centers)


def all_below(targets: Tensor, num_classes: int) -> bool:
    """Whether all targets are known, without waiting for a device, to be in [0, num_classes)."""
    if not tensor_checks.readable(targets) or not targets.numel():
        return False
    lowest, highest = (x.item() for x in torch.aminmax(targets))
    return lowest >= 0 and highest < num_classes


def in_space(
    product: Tensor, space: Space, base: Space, inverse: Tensor, row_norms: Tensor, out: Tensor
) -> Tensor:
    """A block of the product as the similarity of `space`; in place where `out` is `product`."""
    if space == "raw":
        return product
    torch.mul(product, inverse, out=out)
    if space == "cosine" and base != "cosine":
        out.div_(row_norms[:, None])
    return out


def row_tiles(matrix: Tensor) -> Iterator[slice]:
    """Slices of a few rows that stay in a CPU's cache between operations; all rows on other devices."""
    rows, columns = matrix.shape
    size = max(ROW_TILE_ELEMENTS // max(columns, 1), 1) if matrix.device.type == "cpu" else max(rows, 1)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def first_maximum(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`matrix.max(1)`; large ones in two steps, of which the first, without an index, uses all threads."""
    n, width = matrix.shape
    if width <= NARROW or (matrix.device.type == "cpu" and matrix.numel() <= FEW):
        place = _first_place(matrix)
        return matrix.gather(1, place[:, None]).squeeze(1), place
    whole = width // CHUNK * CHUNK
    peaks = matrix[:, :whole].view(n, -1, CHUNK).amax(2)
    if whole < width:
        peaks = torch.cat([peaks, matrix[:, whole:].amax(1, keepdim=True)], 1)
    chunk = _first_place(peaks)
    first = chunk * CHUNK
    columns = first[:, None] + torch.arange(CHUNK, device=matrix.device)
    if whole < width:
        columns.clamp_(max=width - 1)  # the last column may stand there twice
    value = peaks.gather(1, chunk[:, None]).squeeze(1)
    return value, first + _first_place(matrix.gather(1, columns))


def _first_place(matrix: Tensor) -> Tensor:
    """`matrix.argmax(1)`. On a CPU numpy's, whose single thread is faster than several of torch's."""
    if matrix.device.type != "cpu":
        return matrix.argmax(1)
    return torch.from_numpy(matrix.numpy().argmax(1))


def one_at_a_time(*tables: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The columns of (n, t) tables side by side; most have just one."""
    return iter([tables]) if tables[0].shape[1] == 1 else zip(*(x.split(1, 1) for x in tables), strict=True)


def overwrite(matrix: Tensor, columns: Tensor, inside: Inside, value: float) -> None:
    """Set the entries at `columns` that are `inside`; one column at a time, since two may coincide."""
    if inside is None:
        matrix.scatter_(1, columns, value)
        return
    for column, here in one_at_a_time(columns, inside):
        matrix.scatter_(1, column, torch.where(here, value, matrix.gather(1, column)))


def put_back(matrix: Tensor, columns: Tensor, inside: Inside, values: Tensor) -> None:
    """Set the entries at `columns` that are `inside` to `values`, one column at a time."""
    if inside is None:
        matrix.scatter_(1, columns, values)  # where two coincide, so do their values
        return
    for column, here, value in one_at_a_time(columns, inside, values):
        matrix.scatter_(1, column, torch.where(here, value, matrix.gather(1, column)))


def increase(matrix: Tensor, columns: Tensor, inside: Inside, values: Tensor) -> None:
    """Add `values` to the entries at `columns` that are `inside`; one column at a time, so deterministic."""
    for column, value in one_at_a_time(columns, where_inside(inside, values, 0.0)):
        matrix.scatter_(1, column, matrix.gather(1, column) + value)


def where_inside(inside: Inside, values: Tensor, others: Tensor | float) -> Tensor:
    """`values` where `inside`, `others` elsewhere."""
    return values if inside is None else torch.where(inside, values, others)


def multiply(left: Tensor, right: Tensor, out: Tensor, fast: bool) -> Tensor:
    """`left @ right` into `out`; with `fast` in autocast's dtype."""
    if not fast:
        return torch.mm(left, right, out=out)
    half = torch.get_autocast_dtype(left.device.type)
    if half != torch.float16:
        return out.copy_(left.to(half) @ right.to(half))
    # float16 overflows at 65504 and loses digits below 6e-5, where gradients often are: move peaks to 1.
    (left, left_peak), (right, right_peak) = _with_peak_1(left), _with_peak_1(right)
    return out.copy_(left.to(half) @ right.to(half)).mul_(left_peak * right_peak)


def _with_peak_1(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`matrix` divided by its largest absolute value, and that value; without waiting for the device."""
    low, high = torch.aminmax(matrix)
    peak = torch.maximum(high, -low)
    peak = torch.where(peak > 0, peak, 1.0)
    return matrix / peak, peak
