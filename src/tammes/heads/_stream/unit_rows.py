"""Embeddings as they enter a product, with a backward in half the passes of autograd's own."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common.autograd import recorded, vector_jacobian
from tammes._common.types import Embeddings, PerSample
from tammes.geometry.sphere import safe_norm
from tammes.losses._engine.dense_statistics import embeddings_by_space
from tammes.losses.scores import Space


def rows_by_space(
    embeddings: Embeddings, spaces: Iterable[Space]
) -> tuple[dict[Space, Embeddings], PerSample]:
    """`embeddings_by_space`, for heads that write their own backward."""
    rows: dict[Space, Embeddings] = dict.fromkeys(spaces, embeddings)
    if "cosine" not in rows:
        return embeddings_by_space(embeddings, rows)
    rows["cosine"], norms = _UnitRows.apply(embeddings)
    return rows, norms


class _UnitRows(torch.autograd.Function):
    """Unit rows and their norms; a zero row stays zero, has norm 1 and passes its gradient on."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor):
        norms = safe_norm(embeddings)
        unit = embeddings / norms
        ctx.save_for_backward(embeddings, unit, norms)
        ctx.set_materialize_grads(False)
        return unit, norms.squeeze(1)

    @staticmethod
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        embeddings, unit, norms = ctx.saved_tensors
        of_unit, of_norms = grads
        if recorded(grads):
            return vector_jacobian(_unit_rows, [embeddings], grads)[0]
        return gradient_through_norm(unit, norms, of_unit, of_norms)


def gradient_through_norm(
    unit: Embeddings, norms: Float[Tensor, "n 1"], of_unit: Embeddings | None, of_norms: PerSample | None
) -> Embeddings | None:
    """The gradient of embeddings, given those of their `unit` rows and their `norms`; None without any."""
    gradient = None if of_norms is None else unit * of_norms[:, None]
    if of_unit is None:
        return gradient
    along = (of_unit * unit).sum(1, keepdim=True)
    tangential = torch.addcmul(of_unit, unit, along, value=-1).div_(norms)
    return tangential if gradient is None else tangential.add_(gradient)


def _unit_rows(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    rows, norms = embeddings_by_space(embeddings, ("cosine",))
    return rows["cosine"], norms
