"""The reference computation of `Statistics`: whole similarity matrices and plain autograd.

Heads compute the same numbers streamed, sharded or sampled.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tammes._common.types import Embeddings, PerSample, Prototypes
from tammes.geometry.sphere import safe_norm
from tammes.losses._engine.plan import Plan, PrototypeSum, SimilaritySum, Targets
from tammes.losses._engine.rival_logits import RivalLogits
from tammes.losses._engine.statistics import OverClasses, Rivals, Statistics
from tammes.losses.scores import Space


def embeddings_by_space(
    embeddings: Embeddings, spaces: Iterable[Space]
) -> tuple[dict[Space, Embeddings], PerSample]:
    """The embeddings as used in each of `spaces`, and their norms (1 for a zero row)."""
    norms = safe_norm(embeddings)
    rows: dict[Space, Embeddings] = dict.fromkeys(spaces, embeddings)
    if "cosine" in rows:
        rows["cosine"] = embeddings / norms
    return rows, norms.squeeze(1)


def similarities(embeddings: Embeddings, weight: Prototypes, plan: Plan) -> dict[Space, Float[Tensor, "n k"]]:
    """The similarity matrix of every space of `plan`, from one matrix product."""
    rows, row_norms = embeddings_by_space(embeddings, plan.spaces)
    return _similarities(rows[plan.product_space], row_norms, weight, plan)


def _similarities(
    rows: Embeddings, row_norms: PerSample, weight: Prototypes, plan: Plan
) -> dict[Space, Float[Tensor, "n k"]]:
    """`similarities` of rows that are in the plan's product space already."""
    column_norms = safe_norm(weight)
    base = plan.product_space
    columns = weight if base == "raw" else weight / column_norms
    product = rows @ columns.t()
    return {
        space: _rescale(product, base, space, row_norms, column_norms.squeeze(1)) for space in plan.spaces
    }


def _rescale(product: Tensor, base: Space, space: Space, row_norms: Tensor, column_norms: Tensor) -> Tensor:
    """A product in `base` as the similarity of `space`, which normalizes at least as much."""
    if base == "raw" and space != "raw":
        product = product / column_norms
    if base != "cosine" and space == "cosine":
        product = product / row_norms[:, None]
    return product


def dense(embeddings: Embeddings, weight: Prototypes, targets: Targets, plan: Plan) -> Statistics:
    """The reference: whole similarity matrices and plain autograd, differentiable any number of times."""
    rows, row_norms = embeddings_by_space(embeddings, plan.spaces)
    found = over_classes(rows[plan.product_space], row_norms, weight, targets, plan)
    return Statistics.of(found, rows, row_norms, weight, targets, plan)


def over_classes(
    rows: Embeddings, row_norms: PerSample, weight: Prototypes, targets: Targets, plan: Plan
) -> OverClasses:
    """What `dense` computes from whole similarity matrices; `rows` are in the plan's product space."""
    weight = weight.to(rows.dtype)
    matrices, best = of_best_centers(_similarities(rows, row_norms, weight, plan), plan)
    some = matrices[plan.spaces[0]]
    left_out = torch.zeros_like(some, dtype=torch.bool).scatter(1, targets, value=True)
    rivals_for_all = some.shape[1] > targets.shape[1]
    prototypes = targets if best is None else best.gather(1, targets)
    rivals: dict[Space, Rivals] = {}
    for space in plan.spaces:
        masked = matrices[space].masked_fill(left_out, -torch.inf)
        read = masked if space in plan.hardest else masked.detach()
        rivals[space] = Rivals(*read.max(1))  # the first of equal values, as torch documents
    return OverClasses(
        target={space: matrix.gather(1, targets) for space, matrix in matrices.items()},
        rivals=rivals,
        rest={
            key: _rest(matrices[key.space], left_out, plan.logits_of(key), every_row=rivals_for_all)
            for key in plan.rests
        },
        sums=prototype_sums(weight, plan),
        rival_sums={
            which: _sum_of(matrices[which.space].masked_fill(left_out, 0.0), which, plan)
            for which in plan.rival_sums
        },
        target_norms=safe_norm(weight).squeeze(1)[prototypes] if plan.norms else None,
    )


def prototype_sums(weight: Prototypes, plan: Plan) -> dict[PrototypeSum, Float[Tensor, " d"]]:
    """The sums of prototypes that `plan` asks for."""
    sums = {}
    for which in plan.sums:
        rows = weight if which.space == "raw" else weight / safe_norm(weight)
        if which.weighted:
            assert plan.class_weight is not None
            sums[which] = plan.class_weight @ rows
        else:
            sums[which] = rows.sum(0)
    return sums


def _sum_of(similarity: Float[Tensor, "n k"], which: SimilaritySum, plan: Plan) -> PerSample:
    if not which.weighted:
        return similarity.sum(1)
    assert plan.class_weight is not None
    return similarity @ plan.class_weight


def of_best_centers(
    matrices: dict[Space, Float[Tensor, "n p"]], plan: Plan
) -> tuple[dict[Space, Float[Tensor, "n k"]], Int[Tensor, "n k"] | None]:
    """The similarities of each class's best prototype by logit, the first of equal ones, and which it is.

    None with one prototype per class.
    """
    if plan.centers == 1:
        return matrices, None
    logits = matrices[plan.spaces[0]].detach()
    best = logits.unflatten(1, (-1, plan.centers)).argmax(2)
    best = best + torch.arange(0, logits.shape[1], plan.centers, device=best.device)
    return {space: matrix.gather(1, best) for space, matrix in matrices.items()}, best


def _rest(
    similarity: Float[Tensor, "n k"], left_out: Bool[Tensor, "n k"], logits: RivalLogits, *, every_row: bool
) -> Tensor:
    """Log-sum-exp over rivals, per label if the logits depend on it; `every_row`: each row has rivals."""
    parts = [
        _log_sum_exp(logits.dense(similarity, label).masked_fill(left_out, -torch.inf), every_row)
        for label in range(logits.labels or 1)
    ]
    return parts[0] if logits.labels is None else torch.stack(parts, 1)


def _log_sum_exp(logits: Float[Tensor, "n k"], every_row: bool) -> PerSample:
    """Row-wise log-sum-exp; -inf with zero gradients for fully masked rows, unless `every_row` has rivals."""
    if every_row:
        return torch.logsumexp(logits, dim=1)
    empty = (logits.detach() == -torch.inf).all(1)
    safe = torch.where(empty[:, None], 0.0, logits)
    return torch.where(empty, -torch.inf, torch.logsumexp(safe, dim=1))
