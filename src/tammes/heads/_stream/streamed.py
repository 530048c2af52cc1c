"""The numbers of `Scores` without storing all n x k similarities: three strategies, chosen by shape.

- **Kept whole.** All similarities fit the byte budget, and the backward pass reuses them. 3 products.
- **Rows in chunks** (`row_chunks.py`). A chunk of rows against all classes fits the budget: the forward pass
  computes statistics and gradient of one chunk after another, in the same memory. 3 products. Requires a loss
  that is a mean over samples (`Plan.loss_of_rows`), so that the gradient of a chunk is known up to a scalar.
- **Classes in blocks.** For everything else: the forward pass computes statistics, and the backward pass
  recomputes each block, except for the first ones, which fit the budget. At most 4 products.

`rows_per_chunk` and `kept_classes` make the choice. Only prototype norms are stored; the weight is never
copied in normalized form. Under `create_graph=True` the backward pass is that of the dense formula.

Who owns which memory, and when it is overwritten:

- `room`, the blocks in flight: local to a pass (`Forward.run`, `Backward.run`), overwritten by every block.
- The kept buffer: `Forward` takes it from the head's `Workspace` and fills it. `Backward` overwrites each
  kept block with its gradient. After its last block the buffer goes back to the workspace, to be
  overwritten by the next chunk or the next step. In between it belongs to the graph (`ctx.kept`) until the
  first backward pass takes it; any later one, in any thread, recomputes all blocks. With rows in chunks it
  never leaves the forward pass. A pass that fails drops it.
- `inverse_norms` and the statistics: made by `Forward`, saved with the graph, never overwritten.
- Gradients: made by `Backward` and handed to autograd. The workspace remembers the storage of the last
  weight gradient and reuses it once no tensor refers to it, as after `zero_grad`. With rows in chunks,
  gradients are computed in the forward pass and belong to the graph (`ctx.gradients`) until the first
  backward pass takes them, scales them in place and returns them to autograd; a later one recomputes them.
"""

from typing import Any

import torch
from torch import Tensor

from tammes._common.autograd import recorded, vector_jacobian
from tammes._common.types import Embeddings, Prototypes, Scalar
from tammes.heads._stream.backward import Backward
from tammes.heads._stream.blocks import Inputs, Options, all_below
from tammes.heads._stream.forward import Forward
from tammes.heads._stream.row_chunks import statistics_and_loss
from tammes.heads._stream.unit_rows import rows_by_space
from tammes.heads._stream.workspace import Handover, Workspace
from tammes.losses._engine.dense_statistics import over_classes
from tammes.losses._engine.plan import Plan, Targets
from tammes.losses._engine.rival_logits import Rest
from tammes.losses._engine.statistics import OverClasses, Statistics

BUFFER_BYTES = 256 * 2**20
"""Maximum bytes of similarities to keep instead of recomputing them."""

LEAN_BUFFER_BYTES = 52 * 2**20
"""The same if the user has set the block size, to save memory."""

BLOCK_ELEMENTS = 2**21
"""Entries per block of similarities: small enough for the cache, large enough for a fast product."""

THINNEST_CHUNK = 96
"""Minimum rows per chunk. With fewer, its products are so slow that blocks of classes are as fast."""


def auto_block(num_samples: int) -> int:
    """Classes per block for a batch: about 2000 to 8000, an odd multiple of 64.

    Rows whose length is a power of two share cache lines, which slows the products down by a few percent.
    """
    return 64 * (min(max(BLOCK_ELEMENTS // num_samples // 64, 32), 128) - 1 | 1)


def whole_classes(block_size: int, plan: Plan) -> int:
    """About `block_size` rows of the weight that do not split a class.

    A product with rows that are not a multiple of 64 bytes long can take half as long again.
    """
    if plan.centers == 1:
        return block_size
    classes = block_size // plan.centers
    return max(classes - classes % 16 if classes > 16 else classes, 1) * plan.centers


def rows_per_chunk(embeddings: Tensor, weight: Tensor, plan: Plan, buffer_bytes: int) -> int | None:
    """Rows per chunk so that its similarities fit `buffer_bytes`; None to use blocks of classes instead.

    None for half-precision weights, whose gradients would have to be accumulated in a second, wider matrix.
    """
    num_samples, affordable = len(embeddings), buffer_bytes // (len(weight) * embeddings.element_size() or 1)
    if plan.loss_of_rows is None or weight.dtype != embeddings.dtype or not 0 < affordable < num_samples:
        return None
    chunks = -(-num_samples // affordable)
    even = -(-num_samples // chunks)
    rows = min(-(-even // 16) * 16, affordable)
    return rows if rows >= THINNEST_CHUNK else None


def kept_classes(embeddings: Tensor, weight: Tensor, block_size: int, buffer_bytes: int) -> int:
    """Number of classes, in whole blocks from the first, whose similarities are kept for the backward pass.

    Unless all are kept, one more block is in use.
    """
    affordable = buffer_bytes // (embeddings.shape[0] * embeddings.element_size())
    return len(weight) if affordable >= len(weight) else max(affordable // block_size - 1, 0) * block_size


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
    """`dense`, in blocks of `block_size` classes, with `buffer_bytes` for kept similarities.

    They are kept in the `workspace`, if there is one, which avoids an allocation at every step.

    A target outside [0, k) has no column: its similarity is 0 and nothing is masked, so a shard of the
    classes can be streamed by itself.
    """
    block_size = whole_classes(block_size, plan)
    scales = plan.scales if torch.is_grad_enabled() else {}
    inside = all_below(targets, len(weight) // plan.centers)
    options = Options(plan, block_size, 0, fast_products, workspace or Workspace(), tuple(scales), inside)
    if torch.is_grad_enabled() and (embeddings.requires_grad or weight.requires_grad):
        chunk = rows_per_chunk(embeddings, weight, plan, buffer_bytes)
        if chunk is not None:
            block_size = whole_classes(auto_block(chunk), plan) if options.in_place else block_size
            options = options.keeping(len(weight), block_size)
            return statistics_and_loss(embeddings, weight, targets, options, chunk)
        options = options.keeping(kept_classes(embeddings, weight, block_size, buffer_bytes), block_size)
    rows, row_norms = rows_by_space(embeddings, (*plan.spaces, plan.product_space))
    entries = _Streamed.apply(rows[plan.product_space], row_norms, weight, targets, options, *scales.values())
    return Statistics.of(OverClasses.unpack(plan, entries), rows, row_norms, weight, targets, plan)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        row_norms: Tensor,
        weight: Tensor,
        targets: Tensor,
        options: Options,
        *scales: Tensor,
    ):
        inputs = Inputs(rows, row_norms, weight, targets)
        pass_ = Forward(inputs, options)
        statistics, kept = pass_.run()
        ctx.options, ctx.kept = options, Handover(kept)
        entries = statistics.pack()
        ctx.save_for_backward(*inputs, pass_.inverse_norms, *scales, *pass_.slopes_in_scale(), *entries)
        rivals = statistics.rivals
        fixed = [rival.label for rival in rivals.values()]
        fixed += [rival.value for space, rival in rivals.items() if space not in options.plan.hardest]
        ctx.mark_non_differentiable(*fixed)
        ctx.set_materialize_grads(False)
        return entries

    @staticmethod
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        options, plan, learned = ctx.options, ctx.options.plan, ctx.options.learned
        rows, row_norms, weight, targets, inverse_norms, *others = ctx.saved_tensors
        scales, slopes, entries = _split(others, len(learned))
        inputs = Inputs(rows, row_norms, weight, targets)
        if recorded(grads):
            return _dense_gradients(inputs, plan, dict(zip(learned, scales, strict=True)), grads)
        upstream = OverClasses.unpack(plan, grads)
        of_scales = [_inner(upstream.rest[key], slope) for key, slope in zip(learned, slopes, strict=True)]
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[2]):
            return None, None, None, None, None, *of_scales
        kept = ctx.kept.take()
        gradients = Backward(
            inputs,
            inverse_norms,
            statistics=OverClasses.unpack(plan, entries),
            upstream=upstream,
            kept=[] if kept is None else kept.blocks,
            options=options,
            need_rows=ctx.needs_input_grad[0],
            need_weight=ctx.needs_input_grad[2],
        ).run()
        if kept is not None:
            options.workspace.give(kept.buffer)
        return *gradients, None, None, *of_scales


def _split(tensors: list[Tensor], learned: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Saved tensors: learned scales, the derivatives of their rests, all statistics."""
    return tensors[:learned], tensors[learned : 2 * learned], tensors[2 * learned :]


def _inner(upstream: Tensor | None, slope: Tensor) -> Scalar | None:
    """The gradient of a scale, from that of its rest and the derivative of the rest."""
    return None if upstream is None else (upstream * slope).sum()


def _dense_gradients(
    inputs: Inputs, plan: Plan, scales: dict[Rest, Tensor], grads: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Gradients in operations that autograd records; whole similarity matrices, as with `block_size=None`."""

    def packed(rows: Tensor, row_norms: Tensor, weight: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        own = plan.with_scales(dict(zip(scales, values, strict=True)))
        return over_classes(rows, row_norms, weight, inputs.targets, own).pack()

    found = vector_jacobian(packed, [*inputs[:3], *scales.values()], grads)
    return *found[:3], None, None, *found[3:]
