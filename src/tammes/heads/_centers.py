"""Several prototypes per class (sub-centers): the one most similar to the sample represents the class.

The weight is then (k, C, d). Statistics are computed over its k C rows as if each were a class, except that
all but the best prototype of a class are left out; `over_centers` translates labels and classes both ways.
Sums over the classes, as in label smoothing, are of the best prototypes too. The paper has no terms on the
prototypes themselves: here R_w takes the mean of all k C, and MHE the pairs of different classes.

Reference: Deng et al., "Sub-center ArcFace: boosting face recognition by large-scale noisy web faces", 2020.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tammes._common.types import ClassPrototypes, Embeddings, Labels, Scalar, Similarities
from tammes.geometry.sphere import normalize
from tammes.losses._engine.batch_loss import Producer
from tammes.losses._engine.dense_statistics import similarities
from tammes.losses._engine.plan import Plan, Targets
from tammes.losses._engine.statistics import Rivals, Statistics, weight_sum
from tammes.losses.scores import Space


def over_centers(
    embeddings: Embeddings, weight: Float[Tensor, "k c d"], targets: Targets, plan: Plan, produce: Producer
) -> Statistics:
    """Statistics by `produce` of all prototypes, with rows of the weight translated to classes.

    As in `streamed`, a target outside [0, k) has no column.
    """
    num_classes, centers, _ = weight.shape
    of_row = torch.arange(num_classes, device=weight.device).repeat_interleave(centers)
    rows = weight.flatten(0, 1)
    columns = best_columns(embeddings, weight, targets, plan.spaces[0])

    def with_classes(inner: Statistics, targets: Targets, plan: Plan) -> Statistics:
        rivals = {
            space: Rivals(value, label.div(centers, rounding_mode="floor"))
            for space, (value, label) in inner.rivals.items()
        }
        changes: dict[str, Any] = {"targets": targets, "rivals": rivals}
        changes["sums"] = {which: total / centers for which, total in inner.sums.items()}  # of class means
        changes |= {"class_weight": plan.class_weight, "weight_sum": weight_sum(plan), "logits": plan.logits}
        return replace(inner, **changes)

    def loss_of_rows(inner: Statistics, some: slice) -> Scalar:
        assert plan.loss_of_rows is not None
        return plan.loss_of_rows(with_classes(inner, targets[some], plan.of_rows(some)), some)

    inner_plan = plan.of_classes(of_row)._replace(centers=centers, sums=plan.centroids)
    if plan.loss_of_rows is not None:
        inner_plan = inner_plan._replace(loss_of_rows=loss_of_rows)
    return with_classes(produce(embeddings, rows, columns, inner_plan), targets, plan)


@torch.no_grad()
def best_columns(
    embeddings: Embeddings, weight: Float[Tensor, "k c d"], targets: Targets, space: Space
) -> Targets:
    """The row of the most similar prototype of each target's class; -1 for a target outside [0, k)."""
    if not len(weight):
        return torch.full_like(targets, -1)
    inside = (targets >= 0) & (targets < len(weight))
    classes = torch.where(inside, targets, 0)
    rows = weight[classes].to(embeddings.dtype)
    rows = rows if space == "raw" else normalize(rows)
    best = (rows * embeddings[:, None, None]).sum(-1).argmax(-1)
    return torch.where(inside, classes * weight.shape[1] + best, -1)


def class_similarities(
    embeddings: Embeddings, weight: ClassPrototypes, plan: Plan
) -> dict[Space, Similarities]:
    """The similarity matrix of every space of `plan`; that of a class is that of its best prototype."""
    if weight.ndim == 2:
        return similarities(embeddings, weight, plan)
    k, centers, _ = weight.shape
    found = similarities(embeddings, weight.flatten(0, 1), plan)
    return {space: matrix.view(-1, k, centers).amax(2) for space, matrix in found.items()}


def dominant_centers(
    weight: Float[Tensor, "k c d"],
    embeddings: Embeddings,
    labels: Labels,
    ignore_index: int,
    threshold: float,
) -> tuple[Float[Tensor, "k d"], Bool[Tensor, " n"]]:
    """The prototype of each class that most of its samples are closest to, and which samples are near it."""
    k, centers, _ = weight.shape
    known = labels != ignore_index
    if not k:  # a rank may have no classes
        return weight[:, 0], torch.zeros_like(known)
    classes = torch.where(known, labels.long(), 0)
    units = normalize(embeddings.to(torch.promote_types(weight.dtype, torch.float32)))
    cosines = (normalize(weight[classes].to(units.dtype)) * units[:, None]).sum(-1)
    votes = torch.zeros(k * centers, device=weight.device)
    votes.index_add_(0, classes * centers + cosines.argmax(1), known.to(votes.dtype))
    dominant = votes.view(k, centers).argmax(1)
    own = cosines.gather(1, dominant[classes][:, None]).squeeze(1)
    return weight[torch.arange(k, device=weight.device), dominant], known & (own >= math.cos(threshold))
