"""Chunks of rows: gradients computed in the forward pass, with three products and one chunk in memory.

After all classes, the statistics of a chunk are complete, and so is its contribution to a loss that is a mean
over samples. Its gradient with respect to the statistics is plain autograd on a few numbers per row.
`Backward` turns the chunk's similarities into their gradient in place and multiplies it with embeddings and
prototypes; the next chunk overwrites them. `streamed.py` documents who owns which memory.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tammes._common import tensor_checks
from tammes._common.autograd import gradients_of_scalar, recorded, vector_jacobian
from tammes._common.types import Embeddings, PerSample, Prototypes, Scalar
from tammes.heads._stream.backward import Backward
from tammes.heads._stream.blocks import Inputs, Kept, Options
from tammes.heads._stream.forward import Forward
from tammes.heads._stream.unit_rows import gradient_through_norm, rows_by_space
from tammes.heads._stream.workspace import Handover
from tammes.losses._engine.dense_statistics import dense
from tammes.losses._engine.plan import Plan, PrototypeSum, Targets
from tammes.losses._engine.statistics import OverClasses, Statistics
from tammes.losses.scores import Space

Gradients = tuple[Tensor | None, Tensor | None]
"""Gradients of embeddings and weight; None if not required."""


def statistics_and_loss(
    embeddings: Embeddings, weight: Prototypes, targets: Targets, options: Options, chunk: int
) -> Statistics:
    """Statistics without gradients, and the sum of the plan's `loss_of_rows`, which has gradients."""
    plan = options.plan
    loss, row_norms, *entries = _RowChunks.apply(embeddings, weight, targets, options, chunk)
    rows = _rows(embeddings.detach(), row_norms, plan)
    found = OverClasses.unpack(plan, entries)
    return replace(Statistics.of(found, rows, row_norms, weight, targets, plan), loss=loss)


def _rows(embeddings: Embeddings, row_norms: PerSample, plan: Plan) -> dict[Space, Embeddings]:
    """The embeddings in every space; none if no term reads a sum over prototypes, the only use of them."""
    if not plan.sums:
        return {}
    unit = embeddings / row_norms[:, None]
    return {space: unit if space == "cosine" else embeddings for space in plan.spaces}


class _RowChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, weight: Tensor, targets: Tensor, options: Options, chunk: int):
        pass_ = RowChunks(embeddings, weight, targets, options, chunk, ctx.needs_input_grad)
        loss, statistics = pass_.run()
        ctx.options, ctx.chunk, ctx.gradients = options, chunk, Handover(pass_.gradients)
        ctx.save_for_backward(embeddings, weight, targets)
        ctx.set_materialize_grads(False)
        entries = statistics.pack()
        row_norms = torch.cat(pass_.row_norms)
        ctx.mark_non_differentiable(row_norms, *entries)
        return loss, row_norms, *entries

    @staticmethod
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        upstream, (embeddings, weight, targets) = grads[0], ctx.saved_tensors
        if upstream is None:
            return None, None, None, None, None
        if recorded([upstream]):
            return *_dense_gradients(embeddings, weight, targets, ctx.options, upstream), None, None, None
        gradients = ctx.gradients.take()
        if gradients is None:
            pass_ = RowChunks(embeddings, weight, targets, ctx.options, ctx.chunk, ctx.needs_input_grad)
            pass_.run()
            gradients = pass_.gradients
        return *_scaled(gradients, upstream), None, None, None


def _scaled(gradients: Gradients, factor: Scalar) -> Gradients:
    """`gradients` times `factor`, in place; skipped if the factor is known to be 1."""
    if tensor_checks.readable(factor) and factor == 1:
        return gradients
    rows, weight = (None if gradient is None else gradient.mul_(factor) for gradient in gradients)
    return rows, weight


def _dense_gradients(
    embeddings: Tensor, weight: Tensor, targets: Tensor, options: Options, upstream: Scalar
) -> list[Tensor | None]:
    """Gradients by operations that autograd records, with whole similarity matrices."""

    def loss(embeddings: Tensor, weight: Tensor) -> tuple[Tensor]:
        assert options.plan.loss_of_rows is not None
        statistics = dense(embeddings, weight, targets, options.plan)
        return (options.plan.loss_of_rows(statistics, slice(0, len(embeddings))),)

    return vector_jacobian(loss, (embeddings, weight), (upstream,))


class RowChunks:
    """A pass over all rows, `chunk` at a time, that stores the gradients of their loss in `gradients`."""

    def __init__(
        self,
        embeddings: Tensor,
        weight: Tensor,
        targets: Tensor,
        options: Options,
        chunk: int,
        needs_input_grad: tuple[bool, ...],
    ) -> None:
        self.embeddings, self.weight, self.targets = embeddings.detach(), weight.detach(), targets
        self.options, self.plan, self.chunk = options, options.plan, chunk
        self.need_rows, self.need_weight, *_ = needs_input_grad
        self.grad_embeddings = torch.empty_like(self.embeddings) if self.need_rows else None
        self.grad_weight: Tensor | None = None
        self.grad_sums: dict[PrototypeSum, Tensor] = {}
        self.row_norms: list[PerSample] = []
        self.first_pass: Forward | None = None

    @property
    def gradients(self) -> Gradients:
        """Gradients with respect to embeddings and weight, after `run`."""
        return self.grad_embeddings, self.grad_weight

    def run(self) -> tuple[Scalar, OverClasses]:
        """The loss and the statistics of all rows."""
        n = len(self.embeddings)
        parts = [self._chunk(slice(start, min(start + self.chunk, n))) for start in range(0, n, self.chunk)]
        losses, statistics = zip(*parts, strict=True)
        return torch.stack(losses).sum(), OverClasses.cat(self.plan, list(statistics))

    def _chunk(self, rows: slice) -> tuple[Scalar, OverClasses]:
        z = self.embeddings[rows].detach().requires_grad_(self.need_rows)
        with torch.enable_grad():
            in_spaces, row_norms = rows_by_space(z, (*self.plan.spaces, self.plan.product_space))
        base = in_spaces[self.plan.product_space]
        inputs = Inputs(base.detach(), row_norms.detach(), self.weight, self.targets[rows])
        self.row_norms.append(inputs.row_norms)
        options = self.options.of_rows(rows)
        forward = Forward(inputs, options, self.first_pass)
        self.first_pass = self.first_pass or forward
        statistics, kept = forward.run()
        assert kept is not None

        def loss_of(found: OverClasses) -> Scalar:
            assert self.plan.loss_of_rows is not None
            whole = Statistics.of(found, in_spaces, row_norms, self.weight, inputs.targets, options.plan)
            return self.plan.loss_of_rows(whole, rows)

        loss, upstream, of_z = _differentiate(loss_of, statistics, self.plan, z)
        last = rows.stop == len(self.embeddings)
        of_base, of_norms = self._products(inputs, statistics, upstream, kept, options, last=last)
        if self.grad_embeddings is not None:
            assert of_base is not None
            self.grad_embeddings[rows] = self._of_rows(in_spaces["cosine"], inputs, of_base, of_norms)
            if of_z is not None:
                self.grad_embeddings[rows] += of_z
        return loss, statistics

    def _of_rows(self, unit: Tensor, inputs: Inputs, of_base: Tensor, of_norms: Tensor | None) -> Tensor:
        """The gradient of embeddings from those of the product's rows and of the row norms."""
        unit, norms = unit.detach(), inputs.row_norms[:, None]
        if self.plan.product_space != "cosine":
            through = gradient_through_norm(unit, norms, None, of_norms)
            return of_base if through is None else of_base.add_(through)
        through = gradient_through_norm(unit, norms, of_base, of_norms)
        assert through is not None
        return through

    def _products(
        self,
        inputs: Inputs,
        statistics: OverClasses,
        upstream: OverClasses,
        kept: Kept,
        options: Options,
        *,
        last: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients with respect to the product's rows and their norms; that of the weight is accumulated."""
        assert self.first_pass is not None
        for which, gradient in upstream.sums.items():
            if gradient is not None:
                self.grad_sums[which] = self.grad_sums.get(which, 0) + gradient
        of_rows, of_norms, self.grad_weight = Backward(
            inputs,
            self.first_pass.inverse_norms,
            statistics=statistics,
            upstream=upstream._replace(sums=self.grad_sums if last else {}),
            kept=kept.blocks,
            options=options,
            need_rows=self.need_rows,
            need_weight=self.need_weight,
            grad_weight=self.grad_weight,
            last=last,
        ).run()
        self.options.workspace.give(kept.buffer)
        return of_rows, of_norms


def _differentiate(
    loss_of: Callable[[OverClasses], Scalar], statistics: OverClasses, plan: Plan, z: Tensor
) -> tuple[Scalar, OverClasses, Tensor | None]:
    """A chunk's loss, its gradients w.r.t. the statistics, and the direct gradient of the embeddings."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in statistics.pack()]
    with torch.enable_grad():
        loss = loss_of(OverClasses.unpack(plan, leaves))
    of_z, *upstream = gradients_of_scalar(loss, [z, *leaves])
    return loss.detach(), OverClasses.unpack(plan, upstream), of_z
