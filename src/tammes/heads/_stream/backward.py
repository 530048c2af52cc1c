"""Backward pass of the streamed head: from gradients of statistics to those of embeddings and prototypes."""

from typing import Any

import torch
from torch import Tensor

from tammes.heads._stream.blocks import (
    Block,
    Inputs,
    KeptBlock,
    Options,
    blocks,
    in_space,
    increase,
    multiply,
    overwrite,
    put_back,
    row_tiles,
    where_inside,
)
from tammes.heads._stream.products import Product, inverse_of_best, multiply_block, spread
from tammes.losses._engine.rival_logits import RivalLogits, exponentials
from tammes.losses._engine.statistics import OverClasses
from tammes.losses.scores import Space

TILE_ELEMENTS = 2**18
"""Number of gradient entries that stay in a CPU's cache between operations."""


class Backward:
    """One pass over the classes that turns gradients of statistics into gradients of rows and weight.

    Overwrites the `kept` blocks, which it must own. Rows may come in chunks: each adds to the `grad_weight`
    of the previous ones, and the `last` one completes it.
    """

    def __init__(
        self,
        inputs: Inputs,
        inverse_norms: Tensor,
        *,
        statistics: OverClasses,
        upstream: OverClasses,
        kept: list[KeptBlock],
        options: Options,
        need_rows: bool,
        need_weight: bool,
        grad_weight: Tensor | None = None,
        last: bool = True,
    ) -> None:
        self.rows, self.row_norms, self.weight, self.targets = inputs
        self.inverse_norms, self.kept, self.options = inverse_norms, kept, options
        self.rest = statistics.rest
        self.index = {space: rival.label for space, rival in statistics.rivals.items()}
        self.g_target = upstream.target
        self.g_hardest = {space: rival.value for space, rival in upstream.rivals.items()}
        self.g_rest, self.g_sums, self.g_norms = upstream.rest, upstream.sums, upstream.target_norms
        self.g_rivals = upstream.rival_sums
        self.grad_rows = torch.empty_like(inputs.rows) if need_rows else None
        self.rows_begun = False  # whether `grad_rows` has been written to; later products are added
        self.adding, self.last = grad_weight is not None, last
        if need_weight and not self.adding:
            grad_weight = options.workspace.gradient(inputs.weight)
        self.grad_weight = grad_weight
        self.grad_row_norms = torch.zeros_like(inputs.row_norms) if self._base != "cosine" else None

    def run(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of rows, row norms and weight."""
        n, size = self.rows.shape[0], min(self.options.block_size, self.weight.shape[0])
        room = self.rows.new_empty(self._buffers(), n, size)
        for place, block in enumerate(blocks(self.weight, self.inverse_norms, self.rows.dtype, self.options)):
            scratch = block.views(room)
            kept = self.kept[place] if place < len(self.kept) else None
            if kept is not None:
                inverse = inverse_of_best(block, kept.beats, self._base)
                product = Product(kept.matrix, inverse, kept.beats)
            else:
                product = multiply_block(self.rows, block, room[0], self.options)
            if self.options.in_place:
                of_product, radial = self._in_place(product, kept, block), None
            else:
                of_product, radial = self._of_product(product, scratch[1:], block)
            of_norms = None if self.g_norms is None else self._of_norms(product, block)
            by_center = [] if of_product is None else spread(of_product, product.beats, block, self._base)
            if self.grad_rows is not None:
                self._add_to_rows(by_center, block)
            if self.grad_weight is not None:
                self._fill_weight(by_center, radial, of_norms, block)
        if self.grad_rows is not None and not self.rows_begun:
            self.grad_rows.zero_()
        return self.grad_rows, self.grad_row_norms, self.grad_weight

    def _buffers(self) -> int:
        """Number of blocks in use at once besides the kept ones: product, similarity and two gradients."""
        if not self.options.in_place:
            return 4
        return 0 if self.options.kept >= len(self.weight) and self.kept else 1

    @property
    def _base(self) -> Space:
        return self.options.plan.product_space

    def _in_place(self, product: Product, kept: KeptBlock | None, block: Block) -> Tensor | None:
        """The gradient if the cosine is the only similarity, written in place."""
        if not self._asked("cosine"):
            return None
        matrix, inverse = product.matrix, product.inverse
        if kept is not None and kept.shift is not None:
            self._rescale_exponentials(matrix, kept.shift)
            return self._add_targets("cosine", matrix, block, inverse)
        similarity = matrix if kept is not None else matrix.mul_(inverse)
        self._of_rivals("cosine", similarity, block, out=matrix)
        return self._add_targets("cosine", matrix, block).mul_(inverse)

    def _rescale_exponentials(self, exponentials: Tensor, shift: Tensor) -> None:
        """Turn the kept exponentials into softmax weights times their upstream gradient, in place."""
        ((key, upstream),) = self.g_rest.items()
        if upstream is None:
            exponentials.zero_()
            return
        rest, upstream = (x if x.ndim == 1 else x.squeeze(1) for x in (self.rest[key], upstream))
        factor = torch.where(rest == -torch.inf, 0.0, torch.exp(shift - rest))
        scale = self.options.plan.logits_of(key).scale
        exponentials.mul_((scale * upstream * factor)[:, None])

    def _of_product(
        self, product: Product, scratch: list[Tensor], block: Block
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradient of the block's product, and what flows through the norm of each prototype.

        The latter, sum_i G_ij c_ij, is None if `_fill_weight` can compute it from the gradient itself.
        """
        matrix, first, second = scratch
        gradient, radial, inverse = None, None, product.inverse
        for space in filter(self._asked, self.options.plan.spaces):
            similarity = in_space(product.matrix, space, self._base, inverse, self.row_norms, out=matrix)
            part = first if gradient is None else second
            self._of_rivals(space, similarity, block, out=part)
            self._add_targets(space, part, block)
            if space == "cosine" and self._base != "cosine":
                assert self.grad_row_norms is not None
                self.grad_row_norms -= (part * similarity).sum(1) / self.row_norms
            if space != "raw" and self._base == "raw":
                inner = product.sum_by_prototype(part * similarity)
                radial = inner if radial is None else radial + inner
            part = in_space(part, space, self._base, inverse, self.row_norms, out=part)
            gradient = part if gradient is None else gradient.add_(part)
        return gradient, radial

    def _asked(self, space: Space) -> bool:
        """Whether any gradient reaches `space`."""
        keyed = [*self.g_rest.items(), *self.g_rivals.items()]
        over_rivals = (g for key, g in keyed if key.space == space)
        return any(g is not None for g in (self.g_target[space], self.g_hardest[space], *over_rivals))

    def _add_targets(self, space: Space, out: Tensor, block: Block, factors: Tensor | None = None) -> Tensor:
        """Complete the gradient of a space from its softmax weights, by scattering targets and rivals.

        `factors`, one per class of the block, are already included in the softmax weights.
        """
        columns, inside = block.columns(self.targets)
        g_target, g_hardest = self.g_target[space], self.g_hardest[space]
        single = self.targets.shape[1] == 1  # two labels of a sample may coincide
        if g_target is None or not single:
            overwrite(out, columns, inside, 0.0)
        if g_target is not None:
            write = put_back if single else increase
            write(out, columns, inside, g_target if factors is None else g_target * factors[columns])
        if g_hardest is not None:
            columns, inside = block.columns(self.index[space][:, None])
            value = g_hardest[:, None]
            increase(out, columns, inside, value if factors is None else value * factors[columns])
        return out

    def _of_rivals(self, space: Space, similarity: Tensor, block: Block, out: Tensor) -> None:
        """Into `out`, which may be `similarity`: the gradient of rests and sums over the rivals."""
        sums = [(which, g) for which, g in self.g_rivals.items() if which.space == space and g is not None]
        self._softmax_weights(space, similarity, block, out)
        for which, gradient in sums:
            weight = block.class_weight(which, self.options.plan)
            out.add_(gradient[:, None] if weight is None else gradient[:, None] * weight)

    def _softmax_weights(self, space: Space, similarity: Tensor, block: Block, out: Tensor) -> None:
        r"""Into `out`, which may be `similarity`: :math:`g_i x'_{ij} e^{x_{ij} - rest_i}`, over all rests."""
        rests = [key for key, g in self.g_rest.items() if key.space == space and g is not None]
        logits = {key: self.options.plan.logits_of(key).of_classes(block.classes) for key in rests}
        jobs = [(key, label) for key in rests for label in range(logits[key].labels or 1)]
        if not jobs:
            out.zero_()
            return
        parts = [torch.empty_like(out) for _ in jobs[1:]] + [out]
        for (key, label), part in zip(jobs, parts, strict=True):
            upstream, rest = self.g_rest[key], self.rest[key]
            assert upstream is not None
            if rest.ndim == 2:
                upstream, rest = upstream[:, label], rest[:, label]
            rest = rest.masked_fill(rest == -torch.inf, 0.0)  # no rivals: every other entry is overwritten
            factor = logits[key].scale * upstream
            if logits[key].plain:
                exponentials(similarity, logits[key].scale, rest, part).mul_(factor[:, None])
                continue
            for rows in row_tiles(part):
                own = logits[key].of_rows(rows)
                self._weights_of_rows(own, label, similarity[rows], rest[rows], factor[rows], part[rows])
        for part in parts[:-1]:
            out.add_(part)

    def _weights_of_rows(
        self, logits: RivalLogits, label: int, similarity: Tensor, rest: Tensor, factor: Tensor, out: Tensor
    ) -> None:
        """Softmax weights of logits of any form times `factor` and their slope, for a few rows."""
        values, scale, slope = logits.write(similarity, out, label)
        exponentials(values, scale, rest, out).mul_(factor[:, None])
        if slope is not None:
            out.mul_(slope)

    def _add_to_rows(self, by_center: list[Tensor], block: Block) -> None:
        """Add the gradient of each product times its prototypes."""
        assert self.grad_rows is not None
        for of_product, prototypes in zip(by_center, block.by_center(block.part), strict=False):
            if not self.rows_begun:
                multiply(of_product, prototypes, self.grad_rows, self.options.fast_products)
                self.rows_begun = True
            elif self.options.fast_products:
                self.grad_rows += multiply(
                    of_product, prototypes, torch.empty_like(self.grad_rows), fast=True
                )
            else:
                self.grad_rows.addmm_(of_product, prototypes)

    def _fill_weight(
        self, by_center: list[Tensor], radial: Tensor | None, of_norms: Tensor | None, block: Block
    ) -> None:
        """The block's rows of the weight gradient: tangential if normalized, full if raw."""
        assert self.grad_weight is not None
        rows = self.grad_weight[block.start : block.stop]
        exact = rows if rows.dtype == block.part.dtype else self._wider(rows, block)
        if not by_center and not self.adding:
            exact.zero_()
        for of_product, own in zip(by_center, block.by_center(exact), strict=False):
            self._add_to_weight(of_product, own)
        for coefficients, gradient in self._of_sums(block, "cosine"):
            exact.addr_(coefficients, gradient)
            if self._base == "raw":
                inner = coefficients * (block.part @ gradient)
                radial = inner if radial is None else radial + inner
        if radial is not None or (self._base != "raw" and self.last):
            _subtract_radial(exact, radial, block)
        for coefficients, gradient in self._of_sums(block, "raw"):
            exact.add_(gradient) if coefficients is None else exact.addr_(coefficients, gradient)
        if of_norms is not None:  # d|w_y| / dw_y is the unit prototype
            exact.addcmul_(block.part, (of_norms * block.inverse)[:, None])
        if exact is not rows:
            rows.copy_(exact)

    def _wider(self, rows: Tensor, block: Block) -> Tensor:
        """Half-precision `rows` in the dtype of the products, with the values that earlier chunks left."""
        return rows.to(block.part.dtype) if self.adding else torch.empty_like(block.part)

    def _add_to_weight(self, of_product: Tensor, exact: Tensor) -> None:
        """Write G' z to `exact`, or add it to the values of earlier chunks of rows."""
        if not self.adding:
            multiply(of_product.T, self.rows, exact, self.options.fast_products)
        elif self.options.fast_products:
            exact += multiply(of_product.T, self.rows, torch.empty_like(exact), fast=True)
        else:
            exact.addmm_(of_product.T, self.rows)

    def _of_sums(self, block: Block, space: Space) -> list[tuple[Any, Tensor]]:
        """Coefficients and upstream gradient of every sum over raw or unit prototypes."""
        return [
            (block.coefficients(which, self.options.plan), gradient)
            for which, gradient in self.g_sums.items()
            if which.space == space and gradient is not None
        ]

    def _of_norms(self, product: Product, block: Block) -> Tensor:
        """The gradient of the norm of each prototype."""
        assert self.g_norms is not None
        columns, inside = block.columns(self.targets)
        per_prototype = torch.zeros_like(block.inverse)
        places = product.prototypes_at(columns).flatten()
        return per_prototype.index_add_(0, places, where_inside(inside, self.g_norms, 0.0).flatten())


def _subtract_radial(exact: Tensor, radial: Tensor | None, block: Block) -> None:
    """Subtract w_j `radial`_j / |w_j|^2 from each row; without `radial`, the component parallel to w_j.

    Divides twice by the norm, since the square of 1e20 overflows.
    """
    few = exact.numel() <= 2 * TILE_ELEMENTS  # two tiles would cost more in calls than they save
    whole = few or exact.device.type != "cpu"
    size = max(len(exact) if whole else TILE_ELEMENTS // exact.shape[1], 1)
    scratch = torch.empty_like(exact[:size])
    radials = [None] * -(-len(exact) // size) if radial is None else radial[:, None].split(size)
    tiles = zip(
        exact.split(size), block.part.split(size), block.inverse[:, None].split(size), radials, strict=True
    )
    for rows, part, inverse, along in tiles:
        room = scratch if len(rows) == size else scratch[: len(rows)]
        along = torch.mul(rows, part, out=room).sum(1, keepdim=True) if along is None else along
        unit = torch.mul(part, inverse, out=room)
        rows.addcmul_(unit, along * inverse, value=-1)
