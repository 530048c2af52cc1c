"""Forward pass of the streamed head: statistics of a batch in one pass over blocks of classes."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tammes._common.types import Embeddings, Scalar
from tammes.geometry.sphere import safe_norm
from tammes.heads._stream.blocks import (
    Block,
    Inputs,
    Inside,
    Kept,
    KeptBlock,
    Options,
    blocks,
    first_maximum,
    in_space,
    overwrite,
    put_back,
    row_tiles,
    where_inside,
)
from tammes.heads._stream.products import Product, multiply_block
from tammes.losses._engine.plan import SimilaritySum
from tammes.losses._engine.rival_logits import RivalLogits, exponentials
from tammes.losses._engine.statistics import OverClasses, Rivals
from tammes.losses.scores import Space

EVERY_ROW = slice(None)


def top_classes(
    embeddings: Embeddings, weight: Tensor, space: Space, top: int, block_size: int
) -> tuple[Float[Tensor, "n top"], Int[Tensor, "n top"]]:
    """Similarities and classes of the `top` most similar prototypes of each embedding; ties go to the lowest.

    The norm of an embedding does not change the order, so only the prototypes' norms are used.
    """
    dtype = torch.promote_types(torch.promote_types(embeddings.dtype, weight.dtype), torch.float32)
    rows = embeddings.to(dtype)
    values = rows.new_empty(len(rows), 0)
    classes = torch.empty(len(rows), 0, dtype=torch.long, device=rows.device)
    for start in range(0, weight.shape[0], block_size):
        part = weight[start : start + block_size].to(dtype)
        flat = part.view(-1, part.shape[-1])  # all prototypes; a class may have several
        product = rows @ flat.T
        if space != "raw":
            product /= safe_norm(flat).T
        if weight.ndim == 3:
            product = product.view(len(rows), len(part), -1).amax(2)
        for _ in range(min(top, len(part))):  # a few maxima cost far less than sorting a block
            value, place = first_maximum(product)
            values = torch.cat([values, value[:, None]], 1)
            classes = torch.cat([classes, start + place[:, None]], 1)
            product.scatter_(1, place[:, None], -torch.inf)
        order = torch.sort(values, dim=1, descending=True, stable=True).indices[:, :top]
        values, classes = values.gather(1, order), classes.gather(1, order)
    return values, classes


class Forward:
    """One pass over the classes that computes every statistic of the plan.

    Values that depend only on the prototypes are reused from an `earlier` pass over other rows, if any.
    """

    def __init__(self, inputs: Inputs, options: Options, earlier: "Forward | None" = None) -> None:
        self.rows, self.row_norms, self.weight, self.targets = inputs
        self.options = options
        rows, targets, plan = inputs.rows, inputs.targets, options.plan
        self.buffer = options.workspace.take(len(rows) * options.kept, like=rows) if options.kept else None
        self.target: dict[Space, Tensor] = {space: rows.new_zeros(targets.shape) for space in plan.spaces}
        self.hardest: dict[Space, Rivals] = {}  # of the blocks so far
        self.online = {
            key: online_sum(inputs.row_norms, plan.logits_of(key), key in options.learned)
            for key in plan.rests
        }
        self.rival_sums = {which: rows.new_zeros(len(rows)) for which in plan.rival_sums}
        self.target_norms = rows.new_ones(targets.shape) if plan.norms else None
        self.first = earlier is None
        if earlier is None:
            self.inverse_norms = rows.new_empty(len(inputs.weight))
            self.sums = {which: rows.new_zeros(rows.shape[1]) for which in plan.sums}
        else:
            self.inverse_norms, self.sums = earlier.inverse_norms, earlier.sums

    def run(self) -> tuple[OverClasses, Kept | None]:
        """The statistics, and the blocks that were kept."""
        kept = self._pass()
        statistics = OverClasses(
            target=self.target,
            rivals=self.hardest or dict.fromkeys(self.options.plan.spaces, self._no_rivals()),
            rest={key: online.value() for key, online in self.online.items()},
            sums=self.sums,
            rival_sums=self.rival_sums,
            target_norms=self.target_norms,
        )
        return statistics, None if self.buffer is None else Kept(kept, self.buffer)

    def _no_rivals(self) -> Rivals:
        """Of a rank without classes."""
        return Rivals(torch.full_like(self.row_norms, -torch.inf), torch.zeros_like(self.targets[:, 0]))

    def slopes_in_scale(self) -> list[Tensor]:
        """The derivatives of the rests with learned scales by these; after `run`."""
        slopes = [self.online[key].slope_in_scale() for key in self.options.learned]
        return [slope for slope in slopes if slope is not None]

    def _pass(self) -> list[KeptBlock]:
        kept: list[KeptBlock] = []
        n, size = self.rows.shape[0], min(self.options.block_size, self.weight.shape[0])
        room = self.rows.new_empty(self._buffers(), n, size)
        for block in blocks(self.weight, self.inverse_norms, self.rows.dtype, self.options):
            if self.first:
                self._prototypes(block)
            buffers = block.views(room)
            keep = block.stop <= self.options.kept
            product = multiply_block(
                self.rows, block, self._room_to_keep(block) if keep else room[0], self.options
            )
            columns, inside = block.columns(self.targets)
            found = product.matrix.gather(1, columns)
            self._targets(found, columns, inside, product)
            overwrite(product.matrix, columns, inside, -torch.inf)
            held = Held(block.classes, columns, inside, with_slope=keep and self.options.exponentials)
            for space in self.options.plan.spaces:
                matrix = product.matrix if self.options.in_place else buffers[1]
                scratch = product.matrix if self.options.exponentials else buffers[-1]
                self._similarities(product, matrix, scratch, space, block, held)
            if keep:
                kept.append(self._keep(product, columns, inside, found))
        return kept

    def _room_to_keep(self, block: Block) -> Tensor:
        assert self.buffer is not None
        n = self.rows.shape[0]
        return self.buffer[n * block.start : n * block.stop]

    def _keep(self, product: Product, columns: Tensor, inside: Inside, found: Tensor) -> KeptBlock:
        """What to keep of a block: exponentials, or similarities with the targets restored.

        Exponentials are multiplied by the inverse norms that their gradient needs while they are in cache.
        """
        matrix, beats = product.matrix, product.beats
        if self.options.exponentials:
            (online,) = self.online.values()
            return KeptBlock(matrix.mul_(product.inverse), beats, online.shift)
        found = found * product.inverse_at(columns) if self.options.in_place else found
        put_back(matrix, columns, inside, found)
        return KeptBlock(matrix, beats, None)

    def _buffers(self) -> int:
        """Number of blocks in use at once: product, similarity and exponentials often share one."""
        if not self.options.in_place:
            return 3
        if not self.options.exponentials:
            return 2
        return 0 if self.options.kept >= len(self.weight) else 1  # 0: the kept ones

    def _targets(self, found: Tensor, columns: Tensor, inside: Inside, product: Product) -> None:
        inverse, base = product.inverse_at(columns), self.options.plan.product_space
        for space, target in self.target.items():
            value = found if space == "raw" else found * inverse
            if space == "cosine" and base != "cosine":
                value = value / self.row_norms[:, None]
            self.target[space] = where_inside(inside, value, target)
        if self.target_norms is not None:
            self.target_norms = where_inside(inside, 1 / inverse, self.target_norms)

    def _similarities(
        self, product: Product, matrix: Tensor, scratch: Tensor, space: Space, block: Block, held: "Held"
    ) -> None:
        base = self.options.plan.product_space
        matrix = in_space(product.matrix, space, base, product.inverse, self.row_norms, out=matrix)
        hardest = Rivals(*first_maximum(matrix))
        if space in self.hardest:
            hardest = self.hardest[space].or_harder(hardest.value, hardest.label + block.classes.start)
        self.hardest[space] = hardest
        for which in self.rival_sums:
            if which.space == space:
                self._add_rivals(which, matrix, block)
        for key, online in self.online.items():
            if key.space == space:
                online.add(matrix, hardest.value, scratch, held)

    def _add_rivals(self, which: SimilaritySum, matrix: Tensor, block: Block) -> None:
        rivals = matrix.masked_fill(matrix == -torch.inf, 0.0)
        weight = block.class_weight(which, self.options.plan)
        self.rival_sums[which] += rivals.sum(1) if weight is None else rivals @ weight

    def _prototypes(self, block: Block) -> None:
        torch.reciprocal(safe_norm(block.part).squeeze(1), out=block.inverse)
        for which, total in self.sums.items():
            coefficients = block.coefficients(which, self.options.plan)
            total += block.part.sum(0) if coefficients is None else coefficients @ block.part


class Held(NamedTuple):
    """Properties of a block besides its similarities."""

    classes: slice
    columns: Tensor  # of the targets
    inside: Inside  # whether each is in this block
    with_slope: bool  # whether the exponentials are kept for the backward, which needs them times their slope

    def of_rows(self, rows: slice) -> "Held":
        """The same for some of the rows."""
        inside = None if self.inside is None else self.inside[rows]
        return self._replace(columns=self.columns[rows], inside=inside)


class _ScaleSlope:
    r"""The derivative of a log-sum-exp by the scale s of its logits, over columns that come in blocks.

    A logit is :math:`x_j = s y_j + b_j`, so the derivative is the softmax-weighted mean of
    :math:`y_j = (x_j - b_j) / s`. As exponentials are :math:`e_j = e^{x_j - shift}`, the sum of
    :math:`e_j x_j` follows from that of :math:`e_j \log e_j`, and no block of logits has to be kept.
    """

    def __init__(self, like: Tensor) -> None:
        self.total = torch.zeros_like(like)

    def add(
        self,
        block: Tensor,
        sums: Tensor,
        shift: Tensor,
        decay: Tensor | None,
        offset: Tensor | None = None,
        rows: slice = EVERY_ROW,
    ) -> None:
        """Take in a `block` of exponentials with its row `sums`; `decay` is the factor of earlier blocks."""
        part = shift * sums - torch.special.entr(block).sum(1)
        part = part if offset is None else part - block @ offset
        self.total[rows] = part if decay is None else self.total[rows] * decay + part

    def value(self, sums: Tensor, scale: float | Scalar) -> Tensor:
        """The derivative, from the `sums` of the exponentials of all blocks; 0 without any class."""
        return torch.where(sums > 0, self.total / (scale * torch.where(sums > 0, sums, 1.0)), 0.0)


class _OnlineSum:
    """Log-sum-exp over blocks of columns, of logits that are s times the similarities."""

    def __init__(self, like: Tensor, scale: float | Scalar, learned: bool) -> None:
        self.like, self.scale = like, scale
        self.slope = _ScaleSlope(like) if learned else None
        self.peak: Tensor | None = None  # until the first block
        self.total = self.shift = like.new_zeros(())  # shift: of the last block's exponentials

    def add(self, matrix: Tensor, peak: Tensor, scratch: Tensor, held: Held) -> None:
        """Add the columns of `matrix`; `peak` is the row-wise maximum over all blocks so far.

        Leaves their exponentials in `scratch`. The slope of every logit is s.
        """
        safe = torch.nan_to_num(peak, nan=torch.nan, posinf=torch.inf, neginf=0.0)
        self.shift = self.scale * safe
        exponentials(matrix, self.scale, self.shift, scratch)
        sums = scratch.sum(1)
        decay = None if self.peak is None else torch.exp(self.scale * (self.peak - safe))
        if self.slope is not None:
            self.slope.add(scratch, sums, self.shift, decay)
        self.total = sums if decay is None else self.total * decay + sums
        self.peak = peak

    def value(self) -> Tensor:
        """The log-sum-exp; -inf without any class."""
        if self.peak is None:
            return torch.full_like(self.like, -torch.inf)
        return self.scale * self.peak + self.total.log()

    def slope_in_scale(self) -> Tensor | None:
        """The derivative of `value` by the scale, if that is learned."""
        return None if self.slope is None else self.slope.value(self.total, self.scale)


class _OnlineLogits:
    """The same for logits of any form, with one sum per label if they depend on the label."""

    def __init__(self, like: Tensor, logits: RivalLogits, learned: bool) -> None:
        self.logits = logits
        labels = logits.labels or 1
        self.slopes = [_ScaleSlope(like) for _ in range(labels)] if learned else []
        self.peak = [torch.full_like(like, -torch.inf) for _ in range(labels)]
        self.total = [torch.zeros_like(like) for _ in range(labels)]
        self.shift = torch.zeros_like(like)

    def add(self, matrix: Tensor, peak: Tensor, scratch: Tensor, held: Held) -> None:
        """Add the columns of `matrix`. Leaves exponentials, optionally times slope over s, in `scratch`.

        The logits need not attain their maximum at the `peak` of the similarities. A few rows at a time, so
        that what a map needs besides stays small and in cache.
        """
        self.shift = torch.empty_like(self.shift)  # that of an earlier block may be kept with it
        logits = self.logits.of_classes(held.classes)
        for rows in row_tiles(matrix):
            self._add_rows(rows, matrix[rows], scratch[rows], logits.of_rows(rows), held.of_rows(rows))
        if scratch is not matrix:
            overwrite(matrix, held.columns, held.inside, -torch.inf)

    def _add_rows(
        self, rows: slice, matrix: Tensor, scratch: Tensor, logits: RivalLogits, held: Held
    ) -> None:
        overwrite(matrix, held.columns, held.inside, 0.0)  # maps need not handle -inf
        for label in range(len(self.total)):
            values, scale, slope = logits.write(matrix, scratch, label)
            overwrite(values, held.columns, held.inside, -torch.inf)
            before = self.peak[label][rows]
            peak = torch.maximum(before, scale * values.amax(1))
            shift = torch.where(peak == -torch.inf, 0.0, peak)
            exponentials(values, scale, shift, scratch)
            sums, decay = scratch.sum(1), torch.exp(before - shift)
            if self.slopes:
                self.slopes[label].add(scratch, sums, shift, decay, logits.offset, rows)
            self.total[label][rows] = self.total[label][rows] * decay + sums
            self.peak[label][rows], self.shift[rows] = peak, shift
            if slope is not None and held.with_slope:
                scratch.mul_(slope)

    def value(self) -> Tensor:
        values = [peak + total.log() for peak, total in zip(self.peak, self.total, strict=True)]
        return values[0] if self.logits.labels is None else torch.stack(values, 1)

    def slope_in_scale(self) -> Tensor | None:
        """The derivative of `value` by the scale, if that is learned."""
        if not self.slopes:
            return None
        parts = zip(self.slopes, self.total, strict=True)
        values = [slope.value(total, self.logits.scale) for slope, total in parts]
        return values[0] if self.logits.labels is None else torch.stack(values, 1)


def online_sum(like: Tensor, logits: RivalLogits, learned: bool) -> _OnlineSum | _OnlineLogits:
    """A running log-sum-exp of `logits`, with its derivative by their scale if that is `learned`."""
    if logits.plain:
        return _OnlineSum(like, logits.scale, learned)
    return _OnlineLogits(like, logits, learned)
