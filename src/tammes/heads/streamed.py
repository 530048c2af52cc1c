"""The numbers of `Scores` in one pass over blocks of classes: the n x k similarities are never whole.

The forward keeps per-sample statistics; the backward forms each block again, or reads it from a buffer
where one was affordable, and fills a single (k, d) gradient. Prototype norms are k numbers: the weight is
never copied normalised.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from tammes.geometry.energy import riesz_energy
from tammes.geometry.sphere import safe_norm
from tammes.losses.scores import Space
from tammes.losses.statistics import Plan, Rivals, Statistics, Targets, rows_of
from tammes.types import Embeddings, Prototypes

BUFFER_BYTES = 256 * 2**20
"""An n x k buffer up to this size is kept for the backward, which then multiplies three times, not four."""

BLOCK_ELEMENTS = 2**20
"""Entries of one block of similarities: small enough for a cache, large enough for a fast product."""


def auto_block(num_samples: int) -> int:
    """Classes per block for a batch: a multiple of 64, between 256 and 8192."""
    return min(max(BLOCK_ELEMENTS // num_samples // 64 * 64, 256), 8192)


def fits_buffer(embeddings: Tensor, weight: Tensor) -> bool:
    """Whether the similarities of this batch may be kept for the backward."""
    return embeddings.shape[0] * weight.shape[0] * embeddings.element_size() <= BUFFER_BYTES


def streamed(
    embeddings: Embeddings,
    weight: Prototypes,
    targets: Targets,
    plan: Plan,
    *,
    block_size: int,
    keep: bool = False,
    fast_products: bool = False,
) -> Statistics:
    """`dense` in blocks of `block_size` classes; `keep` holds the similarities for the backward.

    A target outside [0, k) has no column here: its similarity is 0 and nothing is masked for it, so that a
    shard of the classes can be streamed by itself.
    """
    rows, row_norms = rows_of(embeddings, (*plan.spaces, plan.product_space))
    options = Options(plan, block_size, keep, fast_products)
    outputs = iter(_Streamed.apply(rows[plan.product_space], row_norms, weight, targets, options))
    target, rivals = {}, {}
    for space in plan.spaces:
        target[space], rivals[space] = next(outputs), Rivals(next(outputs), next(outputs))
    return Statistics(
        targets=targets,
        num_classes=weight.shape[0],
        target=target,
        rest={key: next(outputs) for key in plan.rests},
        rivals=rivals,
        sums={space: next(outputs) for space in plan.sums},
        rows=rows,
        row_norms=row_norms,
        target_norms=next(outputs) if plan.norms else None,
        riesz=lambda power: riesz_energy(weight, power),
    )


def top_classes(
    embeddings: Embeddings, weight: Prototypes, space: Space, top: int, block_size: int
) -> Int[Tensor, "n top"]:
    """The `top` most similar classes of each embedding, best first; the lowest class wins a tie.

    A row's own norm does not change the order, so that only the prototypes' norms enter.
    """
    dtype = torch.promote_types(torch.promote_types(embeddings.dtype, weight.dtype), torch.float32)
    rows = embeddings.to(dtype)
    values = rows.new_empty(len(rows), 0)
    classes = torch.empty(len(rows), 0, dtype=torch.long, device=rows.device)
    for start in range(0, weight.shape[0], block_size):
        part = weight[start : start + block_size].to(dtype)
        product = rows @ part.T
        if space != "raw":
            product /= safe_norm(part).T
        here = torch.arange(start, start + len(part), device=rows.device).expand_as(product)
        values, classes = torch.cat([values, product], 1), torch.cat([classes, here], 1)
        order = torch.sort(values, dim=1, descending=True, stable=True).indices[:, :top]
        values, classes = values.gather(1, order), classes.gather(1, order)
    return classes


@dataclass(frozen=True)
class Options:
    """How to stream, and what."""

    plan: Plan
    block_size: int
    keep: bool
    fast_products: bool


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


def blocks(weight: Tensor, inverse_norms: Tensor, dtype: torch.dtype, size: int) -> Iterator[Block]:
    """`weight` in blocks of `size` rows; `inverse_norms` is filled on the first pass."""
    for start in range(0, weight.shape[0], size):
        stop = min(start + size, weight.shape[0])
        yield Block(start, stop, weight[start:stop].to(dtype), inverse_norms[start:stop])


class _Online:
    """Log-sum-exp over columns that come in blocks, for one space and one scale."""

    def __init__(self, like: Tensor, scale: float) -> None:
        self.scale = scale
        self.peak = torch.full_like(like, -torch.inf)
        self.total = torch.zeros_like(like)

    def add(self, matrix: Tensor, peak: Tensor, scratch: Tensor) -> None:
        """Take in the columns of `matrix`, whose row-wise maximum over all blocks so far is `peak`."""
        safe = torch.where(peak == -torch.inf, 0.0, peak)
        torch.add((-self.scale * safe)[:, None], matrix, alpha=self.scale, out=scratch).exp_()
        self.total = self.total * torch.exp(self.scale * (self.peak - safe)) + scratch.sum(1)
        self.peak = peak

    def value(self) -> Tensor:
        return self.scale * self.peak + self.total.log()


def _in_space(
    product: Tensor, space: Space, base: Space, block: Block, row_norms: Tensor, out: Tensor
) -> Tensor:
    """A block of the product as the similarity of `space`; in place where `out` is `product`."""
    if space == "raw":
        return product
    torch.mul(product, block.inverse, out=out)
    if space == "cosine" and base != "cosine":
        out.div_(row_norms[:, None])
    return out


def _overwrite(matrix: Tensor, columns: Tensor, inside: Tensor, value: float) -> None:
    """Set the entries at `columns` that are `inside`; one column at a time, since two may be the same."""
    for column, here in zip(columns.split(1, 1), inside.split(1, 1), strict=True):
        matrix.scatter_(1, column, torch.where(here, value, matrix.gather(1, column)))


def _increase(matrix: Tensor, columns: Tensor, inside: Tensor, values: Tensor) -> None:
    """Add `values` to the entries at `columns` that are `inside`; a row at a time, so deterministic."""
    parts = (columns.split(1, 1), inside.split(1, 1), values.split(1, 1))
    for column, here, value in zip(*parts, strict=True):
        matrix.scatter_(1, column, matrix.gather(1, column) + torch.where(here, value, 0.0))


def _multiply(left: Tensor, right: Tensor, out: Tensor, fast: bool) -> Tensor:
    """`left @ right` into `out`; with `fast` in autocast's dtype."""
    if not fast:
        return torch.mm(left, right, out=out)
    half = torch.get_autocast_dtype(left.device.type)
    return out.copy_(left.to(half) @ right.to(half))


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, row_norms: Tensor, weight: Tensor, targets: Tensor, options: Options):
        pass_ = _Forward(rows, row_norms, weight, targets, options)
        pass_.run()
        ctx.options, ctx.kept = options, pass_.kept
        rests = [online.value() for online in pass_.online.values()]
        indices = [pass_.index[space] for space in options.plan.hardest]
        ctx.save_for_backward(rows, row_norms, weight, targets, pass_.inverse_norms, *rests, *indices)
        outputs: list[Tensor] = []
        fixed: list[Tensor] = []
        for space in options.plan.spaces:
            outputs += [pass_.target[space], pass_.hardest[space], pass_.index[space]]
            fixed.append(pass_.index[space])
            if space not in options.plan.hardest:
                fixed.append(pass_.hardest[space])
        outputs += [*rests, *pass_.sums.values()]
        if options.plan.norms:
            outputs.append(pass_.target_norms)
        ctx.mark_non_differentiable(*fixed)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):
        plan = ctx.options.plan
        rows, row_norms, weight, targets, inverse_norms, *more = ctx.saved_tensors
        upstream = iter(grads)
        back = _Backward(rows, row_norms, weight, targets, inverse_norms, ctx.options, ctx.kept)
        for space in plan.spaces:
            back.g_target[space], back.g_hardest[space], _ = next(upstream), next(upstream), next(upstream)
        back.g_rest = {key: next(upstream) for key in plan.rests}
        back.g_sums = {space: next(upstream) for space in plan.sums}
        back.g_norms = next(upstream) if plan.norms else None
        back.rest = dict(zip(plan.rests, more, strict=False))
        back.index = dict(zip(plan.hardest, more[len(plan.rests) :], strict=True))
        back.run(need_rows=ctx.needs_input_grad[0], need_weight=ctx.needs_input_grad[2])
        ctx.kept = None
        return back.grad_rows, back.grad_row_norms, back.grad_weight, None, None


class _Forward:
    """One pass over the classes that fills in every statistic of the plan."""

    def __init__(
        self, rows: Tensor, row_norms: Tensor, weight: Tensor, targets: Tensor, options: Options
    ) -> None:
        self.rows, self.row_norms, self.weight, self.targets, self.options = (
            rows,
            row_norms,
            weight,
            targets,
            options,
        )
        plan, n, k = options.plan, rows.shape[0], weight.shape[0]
        low = rows.new_full((n,), -torch.inf)
        self.inverse_norms = rows.new_empty(k)
        self.kept = rows.new_empty(n, k) if options.keep else None
        self.target = {space: rows.new_zeros(targets.shape) for space in plan.spaces}
        self.hardest = dict.fromkeys(plan.spaces, low)
        self.index = {space: torch.zeros_like(targets[:, 0]) for space in plan.spaces}
        self.online = {key: _Online(low, key[1]) for key in plan.rests}
        self.sums = {space: rows.new_zeros(rows.shape[1]) for space in plan.sums}
        self.target_norms = rows.new_ones(targets.shape)

    def run(self) -> None:
        n, size = self.rows.shape[0], min(self.options.block_size, self.weight.shape[0])
        room = self.rows.new_empty(3, n, size)
        for block in blocks(self.weight, self.inverse_norms, self.rows.dtype, size):
            torch.reciprocal(safe_norm(block.part).squeeze(1), out=block.inverse)
            width = block.stop - block.start
            product, matrix, scratch = (part.view(-1)[: n * width].view(n, width) for part in room)
            if self.kept is not None:
                product = self.kept[:, block.start : block.stop]
            _multiply(self.rows, block.part.T, product, self.options.fast_products)
            columns, inside = block.columns(self.targets)
            found = product.gather(1, columns)
            self._targets(found, columns, inside, block)
            _overwrite(product, columns, inside, -torch.inf)
            for space in self.options.plan.spaces:
                self._similarities(product, matrix, scratch, space, block)
            if self.kept is not None:
                product.scatter_(1, columns, found)
            self._prototypes(block)

    def _targets(self, found: Tensor, columns: Tensor, inside: Tensor, block: Block) -> None:
        inverse, base = block.inverse[columns], self.options.plan.product_space
        for space, target in self.target.items():
            value = found if space == "raw" else found * inverse
            if space == "cosine" and base != "cosine":
                value = value / self.row_norms[:, None]
            self.target[space] = torch.where(inside, value, target)
        if self.options.plan.norms:
            self.target_norms = torch.where(inside, 1 / inverse, self.target_norms)

    def _similarities(
        self, product: Tensor, matrix: Tensor, scratch: Tensor, space: Space, block: Block
    ) -> None:
        plan = self.options.plan
        matrix = _in_space(product, space, plan.product_space, block, self.row_norms, out=matrix)
        value, index = matrix.max(1)
        better = value > self.hardest[space]
        self.hardest[space] = torch.where(better, value, self.hardest[space])
        self.index[space] = torch.where(better, index + block.start, self.index[space])
        for (other, _), online in self.online.items():
            if other == space:
                online.add(matrix, self.hardest[space], scratch)

    def _prototypes(self, block: Block) -> None:
        for space, total in self.sums.items():
            total += block.part.sum(0) if space == "raw" else block.inverse @ block.part


class _Backward:
    """One pass over the classes that turns gradients of statistics into gradients of rows and weight."""

    g_rest: dict[tuple[Space, float], Tensor | None]
    g_sums: dict[Space, Tensor | None]
    g_norms: Tensor | None
    rest: dict[tuple[Space, float], Tensor]
    index: dict[Space, Tensor]

    def __init__(
        self,
        rows: Tensor,
        row_norms: Tensor,
        weight: Tensor,
        targets: Tensor,
        inverse_norms: Tensor,
        options: Options,
        kept: Tensor | None,
    ) -> None:
        self.rows, self.row_norms, self.weight, self.targets = rows, row_norms, weight, targets
        self.inverse_norms, self.options, self.kept = inverse_norms, options, kept
        self.g_target: dict[Space, Tensor | None] = {}
        self.g_hardest: dict[Space, Tensor | None] = {}
        self.grad_rows: Tensor | None = None
        self.grad_row_norms: Tensor | None = None
        self.grad_weight: Tensor | None = None

    def run(self, *, need_rows: bool, need_weight: bool) -> None:
        n, size = self.rows.shape[0], min(self.options.block_size, self.weight.shape[0])
        room = self.rows.new_empty(4, n, size)
        self.grad_rows = torch.zeros_like(self.rows) if need_rows else None
        self.grad_weight = torch.empty_like(self.weight) if need_weight else None
        self.grad_row_norms = torch.zeros_like(self.row_norms) if self._base != "cosine" else None
        for block in blocks(self.weight, self.inverse_norms, self.rows.dtype, size):
            width = block.stop - block.start
            product, *scratch = (part.view(-1)[: n * width].view(n, width) for part in room)
            if self.kept is None:
                _multiply(self.rows, block.part.T, product, self.options.fast_products)
            else:
                product = self.kept[:, block.start : block.stop]
            of_product, radial = self._of_product(product, scratch, block)
            if of_product is not None and self.grad_rows is not None:
                self._add_to_rows(of_product, block)
            if self.grad_weight is not None:
                self._fill_weight(of_product, radial, block)

    @property
    def _base(self) -> Space:
        return self.options.plan.product_space

    def _of_product(
        self, product: Tensor, scratch: list[Tensor], block: Block
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradient of the block's product, and per class the part that the prototype's norm answers for.

        The latter, sum_i G_ij c_ij, is None when `_fill_weight` can read it off the gradient itself.
        """
        matrix, exponential, total = scratch
        gradient, radial = None, None
        for space in self.options.plan.spaces:
            if not self._asked(space):
                continue
            similarity = _in_space(product, space, self._base, block, self.row_norms, out=matrix)
            part = self._of_space(space, similarity, exponential, block)
            if space == "cosine" and self._base != "cosine":
                assert self.grad_row_norms is not None
                self.grad_row_norms -= (part * similarity).sum(1) / self.row_norms
            if space != "raw":
                if self._base == "raw":
                    inner = (part * similarity).sum(0)
                    radial = inner if radial is None else radial + inner
                part.mul_(block.inverse)
            if space == "cosine" and self._base != "cosine":
                part.div_(self.row_norms[:, None])
            gradient = part if gradient is None else gradient.add_(part)
            if gradient is part:
                exponential, total = total, exponential
        return gradient, radial

    def _asked(self, space: Space) -> bool:
        """Whether any gradient reaches `space` at all."""
        rests = (g for (other, _), g in self.g_rest.items() if other == space)
        return any(g is not None for g in (self.g_target[space], self.g_hardest[space], *rests))

    def _of_space(self, space: Space, similarity: Tensor, out: Tensor, block: Block) -> Tensor:
        """Gradient of one space's similarities: softmax weights, then targets and rivals by scatter."""
        first = True
        for (other, scale), upstream in self.g_rest.items():
            if other != space or upstream is None:
                continue
            weights = out if first else torch.empty_like(out)
            torch.add(-self.rest[other, scale][:, None], similarity, alpha=scale, out=weights)
            weights.exp_().mul_((scale * upstream)[:, None])
            out = weights if first else out.add_(weights)
            first = False
        columns, inside = block.columns(self.targets)
        if first:
            out.zero_()
        else:
            _overwrite(out, columns, inside, 0.0)
        g_target, g_hardest = self.g_target[space], self.g_hardest[space]
        if g_target is not None:
            _increase(out, columns, inside, g_target)
        if g_hardest is not None:
            columns, inside = block.columns(self.index[space][:, None])
            _increase(out, columns, inside, g_hardest[:, None])
        return out

    def _add_to_rows(self, of_product: Tensor, block: Block) -> None:
        assert self.grad_rows is not None
        if self.options.fast_products:
            self.grad_rows += _multiply(of_product, block.part, torch.empty_like(self.grad_rows), fast=True)
        else:
            self.grad_rows.addmm_(of_product, block.part)

    def _fill_weight(self, of_product: Tensor | None, radial: Tensor | None, block: Block) -> None:
        """The block's rows of the weight gradient: tangential for what is normalised, whole for the rest."""
        assert self.grad_weight is not None
        rows = self.grad_weight[block.start : block.stop]
        exact = rows if rows.dtype == block.part.dtype else torch.empty_like(block.part)
        if of_product is None:
            exact.zero_()
        else:
            _multiply(of_product.T, self.rows, exact, self.options.fast_products)
        g_unit, g_raw = self.g_sums.get("cosine"), self.g_sums.get("raw")
        if g_unit is not None:
            exact.addr_(block.inverse, g_unit)
            if radial is not None:
                radial = radial + block.inverse * (block.part @ g_unit)
        if self._base != "raw":
            radial = (exact * block.part).sum(1)
        elif g_unit is not None and radial is None:
            radial = block.inverse * (block.part @ g_unit)
        if radial is not None:
            exact.addcmul_(block.part, (radial * block.inverse**2)[:, None], value=-1)
        if g_raw is not None:
            exact.add_(g_raw)
        if self.g_norms is not None:
            self._add_norms(exact, block)
        if exact is not rows:
            rows.copy_(exact)

    def _add_norms(self, exact: Tensor, block: Block) -> None:
        """d|w_y| / dw_y is the unit prototype."""
        assert self.g_norms is not None
        columns, inside = block.columns(self.targets)
        per_class = exact.new_zeros(exact.shape[0])
        per_class.index_add_(0, columns.flatten(), torch.where(inside, self.g_norms, 0.0).flatten())
        exact.addcmul_(block.part, (per_class * block.inverse)[:, None])
