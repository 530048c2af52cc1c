"""Several prototypes per class (sub-centers): the one most similar to the sample represents the class.

The weight is then (k, C, d). `Plan.centers` tells the heads that C adjacent rows of the flat weight are one
class: they reduce the similarities to those of the best prototypes, and continue as with one per class
(`_stream/products.py`, and `of_best_centers` of the dense reference). Sums over the classes, as in label
smoothing, are of the best prototypes too. The paper has no terms on the prototypes themselves: here R_w takes
the mean of all k C, and MHE the pairs of different classes.

Reference: Deng et al., "Sub-center ArcFace: boosting face recognition by large-scale noisy web faces", 2020.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tammes._common.types import ClassPrototypes, Embeddings, Labels, Similarities
from tammes.geometry.sphere import normalize
from tammes.losses._engine.batch_loss import Producer
from tammes.losses._engine.dense_statistics import similarities
from tammes.losses._engine.plan import Plan, Targets
from tammes.losses._engine.statistics import Statistics
from tammes.losses.scores import Space


def over_centers(
    embeddings: Embeddings, weight: Float[Tensor, "k c d"], targets: Targets, plan: Plan, produce: Producer
) -> Statistics:
    """Statistics of classes by `produce`, which takes the prototypes as the rows of a matrix."""
    inner = plan._replace(centers=weight.shape[1], sums=plan.centroids)
    return produce(embeddings, weight.flatten(0, 1), targets, inner)


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
