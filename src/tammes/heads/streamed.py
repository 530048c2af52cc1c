"""The numbers of `Scores` in one pass over blocks of classes: the n x k similarities are never whole.

The forward keeps per-sample statistics; the backward forms each block again, or reads it from a buffer
where one was affordable, and fills a single (k, d) gradient. Prototype norms are k numbers: the weight is
never copied normalised.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from tammes.geometry.energy import riesz_energy
from tammes.geometry.sphere import safe_norm
from tammes.heads.blocks import Block, Kept, Options, blocks, first_maximum, in_space, multiply, overwrite
from tammes.heads.streamed_backward import Backward
from tammes.heads.workspace import Workspace
from tammes.losses.scores import Space
from tammes.losses.statistics import Plan, Rivals, Statistics, Targets, rows_of
from tammes.types import Embeddings, Prototypes

BUFFER_BYTES = 256 * 2**20
"""So many bytes of similarities are kept for the backward, which need not multiply for them again."""

LEAN_BUFFER_BYTES = 44 * 2**20
"""The same where the user has chosen the blocks, to save memory."""

BLOCK_ELEMENTS = 2**20
"""Entries of one block of similarities: small enough for a cache, large enough for a fast product."""


def auto_block(num_samples: int) -> int:
    """Classes per block for a batch: a multiple of 64, between 2048 and 8192."""
    return min(max(BLOCK_ELEMENTS // num_samples // 64 * 64, 2048), 8192)


def kept_classes(embeddings: Tensor, weight: Tensor, block_size: int, buffer_bytes: int) -> int:
    """How many classes, in whole blocks from the first, have their similarities kept for the backward."""
    affordable = buffer_bytes // (embeddings.shape[0] * embeddings.element_size())
    return len(weight) if affordable >= len(weight) else affordable // block_size * block_size


def streamed(
    embeddings: Embeddings,
    weight: Prototypes,
    targets: Targets,
    plan: Plan,
    *,
    block_size: int,
    buffer_bytes: int = 0,
    fast_products: bool = False,
    workspace: Workspace | None = None,
) -> Statistics:
    """`dense` in blocks of `block_size` classes; the first `buffer_bytes` of similarities are kept.

    They are kept in the `workspace`, if there is one, which saves making room for them at every step.

    A target outside [0, k) has no column here: its similarity is 0 and nothing is masked for it, so that a
    shard of the classes can be streamed by itself.
    """
    rows, row_norms = rows_of(embeddings, (*plan.spaces, plan.product_space))
    kept = kept_classes(embeddings, weight, block_size, buffer_bytes)
    options = Options(plan, block_size, kept, fast_products, workspace or Workspace())
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
) -> tuple[Float[Tensor, "n top"], Int[Tensor, "n top"]]:
    """Similarity and class of the `top` most similar of each embedding, best first, the lowest on a tie.

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
        for _ in range(min(top, len(part))):  # a few maxima cost far less than sorting a block
            value, place = first_maximum(product)
            values = torch.cat([values, value[:, None]], 1)
            classes = torch.cat([classes, start + place[:, None]], 1)
            product.scatter_(1, place[:, None], -torch.inf)
        order = torch.sort(values, dim=1, descending=True, stable=True).indices[:, :top]
        values, classes = values.gather(1, order), classes.gather(1, order)
    return values, classes


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, row_norms: Tensor, weight: Tensor, targets: Tensor, options: Options):
        pass_ = Forward(rows, row_norms, weight, targets, options)
        pass_.run()
        ctx.options, ctx.kept, ctx.buffer = options, pass_.kept, pass_.buffer
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
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        plan = ctx.options.plan
        rows, row_norms, weight, targets, inverse_norms, *more = ctx.saved_tensors
        upstream = iter(grads)
        back = Backward(rows, row_norms, weight, targets, inverse_norms, ctx.options, ctx.kept)
        for space in plan.spaces:
            back.g_target[space], back.g_hardest[space], _ = next(upstream), next(upstream), next(upstream)
        back.g_rest = {key: next(upstream) for key in plan.rests}
        back.g_sums = {space: next(upstream) for space in plan.sums}
        back.g_norms = next(upstream) if plan.norms else None
        back.rest = dict(zip(plan.rests, more, strict=False))
        back.index = dict(zip(plan.hardest, more[len(plan.rests) :], strict=True))
        back.run(need_rows=ctx.needs_input_grad[0], need_weight=ctx.needs_input_grad[2])
        if ctx.kept:
            ctx.options.workspace.give(ctx.buffer)
        ctx.kept, ctx.buffer = [], None
        return back.grad_rows, back.grad_row_norms, back.grad_weight, None, None


class Forward:
    """One pass over the classes that fills in every statistic of the plan."""

    def __init__(
        self, rows: Tensor, row_norms: Tensor, weight: Tensor, targets: Tensor, options: Options
    ) -> None:
        self.rows, self.row_norms, self.weight = rows, row_norms, weight
        self.targets, self.options = targets, options
        plan, n, k = options.plan, rows.shape[0], weight.shape[0]
        low = rows.new_full((n,), -torch.inf)
        self.inverse_norms = rows.new_empty(k)
        self.kept: list[Kept] = []
        self.buffer = options.workspace.take(n * options.kept, like=rows)
        self.target = {space: rows.new_zeros(targets.shape) for space in plan.spaces}
        self.hardest = dict.fromkeys(plan.spaces, low)
        self.index = {space: torch.zeros_like(targets[:, 0]) for space in plan.spaces}
        self.online = {key: _Online(low, key[1]) for key in plan.rests}
        self.sums = {space: rows.new_zeros(rows.shape[1]) for space in plan.sums}
        self.target_norms = rows.new_ones(targets.shape)

    def run(self) -> None:
        n, size = self.rows.shape[0], min(self.options.block_size, self.weight.shape[0])
        room = self.rows.new_empty(self._buffers(), n, size)
        for block in blocks(self.weight, self.inverse_norms, self.rows.dtype, size):
            torch.reciprocal(safe_norm(block.part).squeeze(1), out=block.inverse)
            buffers = block.views(room)
            keep = block.stop <= self.options.kept
            product = self._room_to_keep(block) if keep else buffers[0]
            multiply(self.rows, block.part.T, product, self.options.fast_products)
            columns, inside = block.columns(self.targets)
            found = product.gather(1, columns)
            self._targets(found, columns, inside, block)
            overwrite(product, columns, inside, -torch.inf)
            for space in self.options.plan.spaces:
                matrix = product if self.options.in_place else buffers[1]
                scratch = product if self.options.exponentials else buffers[-1]
                self._similarities(product, matrix, scratch, space, block)
            if keep:
                self.kept.append(self._keep(product, columns, found, block))
            self._prototypes(block)

    def _room_to_keep(self, block: Block) -> Tensor:
        n = self.rows.shape[0]
        return self.buffer[n * block.start : n * block.stop].view(n, -1)

    def _keep(self, product: Tensor, columns: Tensor, found: Tensor, block: Block) -> Kept:
        """What the forward leaves of a block: exponentials, or similarities with the targets put back."""
        if self.options.exponentials:
            (online,) = self.online.values()
            return Kept(product, online.shift)
        found = found * block.inverse[columns] if self.options.in_place else found
        return Kept(product.scatter_(1, columns, found), None)

    def _buffers(self) -> int:
        """How many blocks are in use at once: product, similarity, exponentials; often all in one place."""
        if not self.options.in_place:
            return 3
        return 1 if self.options.exponentials else 2

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
        matrix = in_space(product, space, plan.product_space, block, self.row_norms, out=matrix)
        value, index = first_maximum(matrix)
        better = value > self.hardest[space]
        self.hardest[space] = torch.where(better, value, self.hardest[space])
        self.index[space] = torch.where(better, index + block.start, self.index[space])
        for (other, _), online in self.online.items():
            if other == space:
                online.add(matrix, self.hardest[space], scratch)

    def _prototypes(self, block: Block) -> None:
        for space, total in self.sums.items():
            total += block.part.sum(0) if space == "raw" else block.inverse @ block.part


class _Online:
    """Log-sum-exp over columns that come in blocks, for one space and one scale."""

    def __init__(self, like: Tensor, scale: float) -> None:
        self.scale = scale
        self.peak = torch.full_like(like, -torch.inf)
        self.total = torch.zeros_like(like)
        self.shift = torch.zeros_like(like)  # of the last block's exponentials

    def add(self, matrix: Tensor, peak: Tensor, scratch: Tensor) -> None:
        """Take in the columns of `matrix`, whose row-wise maximum over all blocks so far is `peak`."""
        safe = torch.where(peak == -torch.inf, 0.0, peak)
        self.shift = self.scale * safe
        torch.add(-self.shift[:, None], matrix, alpha=self.scale, out=scratch).exp_()
        self.total = self.total * torch.exp(self.scale * (self.peak - safe)) + scratch.sum(1)
        self.peak = peak

    def value(self) -> Tensor:
        return self.scale * self.peak + self.total.log()
