"""Several prototypes per class (sub-centers): the one most similar to the sample represents the class.

The weight is then (k, C, d). Statistics are computed over its k C rows as if each were a class, except that
all but the best prototype of a class are left out; `over_centers` translates labels and classes both ways.

Reference: Deng et al., "Sub-center ArcFace: boosting face recognition by large-scale noisy web faces", 2020.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tammes._common.types import Embeddings, Labels, Scalar
from tammes.geometry.sphere import normalize
from tammes.losses._engine.batch_loss import Producer
from tammes.losses._engine.plan import Plan, Targets
from tammes.losses._engine.statistics import Rivals, Statistics
from tammes.losses.objective import Objective, PrototypeTerm
from tammes.losses.scores import Space


def check_terms(objective: Objective, centers: int) -> None:
    """Raise for terms that sum over the prototypes of all classes."""
    for _, term in objective.weighted_terms:
        need = term.need
        if centers > 1 and (need.mean or need.smoothing or isinstance(term, PrototypeTerm)):
            raise ValueError(
                f"{term} does not support centers={centers}: it reads a sum over all prototypes. Omit "
                "label smoothing and terms on prototypes, or use a head with centers=1."
            )


def over_centers(
    embeddings: Embeddings, weight: Float[Tensor, "k c d"], targets: Targets, plan: Plan, produce: Producer
) -> Statistics:
    """Statistics by `produce` of all prototypes, with rows of the weight translated to classes."""
    num_classes, centers, _ = weight.shape
    of_row = torch.arange(num_classes, device=weight.device).repeat_interleave(centers)
    rows = weight.flatten(0, 1)
    columns = best_columns(embeddings, weight, targets, plan.spaces[0])

    def with_classes(inner: Statistics, targets: Targets, plan: Plan) -> Statistics:
        rivals = {
            space: Rivals(value, label.div(centers, rounding_mode="floor"))
            for space, (value, label) in inner.rivals.items()
        }
        changes: dict[str, Any] = {"targets": targets, "num_classes": num_classes, "rivals": rivals}
        return replace(inner, **changes, class_weight=plan.class_weight, logits=plan.logits)

    def loss_of_rows(inner: Statistics, some: slice) -> Scalar:
        assert plan.loss_of_rows is not None
        return plan.loss_of_rows(with_classes(inner, targets[some], plan.of_rows(some)), some)

    inner_plan = plan.of_classes(of_row)._replace(centers=centers)
    if plan.loss_of_rows is not None:
        inner_plan = inner_plan._replace(loss_of_rows=loss_of_rows)
    return with_classes(produce(embeddings, rows, columns, inner_plan), targets, plan)


@torch.no_grad()
def best_columns(
    embeddings: Embeddings, weight: Float[Tensor, "k c d"], targets: Targets, space: Space
) -> Targets:
    """The index of the most similar prototype of each target's class."""
    rows = weight[targets].to(embeddings.dtype)
    rows = rows if space == "raw" else normalize(rows)
    best = (rows * embeddings[:, None, None]).sum(-1).argmax(-1)
    return targets * weight.shape[1] + best


def best_of_centers(similarities: Float[Tensor, "n kc"], centers: int) -> Float[Tensor, "n k"]:
    """The similarity of each class: that of its best prototype."""
    return similarities.view(len(similarities), -1, centers).amax(2)


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
    classes = torch.where(known, labels.long(), 0)
    units = normalize(embeddings.to(torch.promote_types(weight.dtype, torch.float32)))
    cosines = (normalize(weight[classes].to(units.dtype)) * units[:, None]).sum(-1)
    votes = torch.zeros(k * centers, device=weight.device)
    votes.index_add_(0, classes * centers + cosines.argmax(1), known.to(votes.dtype))
    dominant = votes.view(k, centers).argmax(1)
    own = cosines.gather(1, dominant[classes][:, None]).squeeze(1)
    return weight[torch.arange(k, device=weight.device), dominant], known & (own >= math.cos(threshold))
