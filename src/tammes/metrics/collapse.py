r"""Neural collapse: how close features and prototypes are to a simplex (Papyan, Han and Donoho, 2020).

With :math:`\mu_c` the mean feature of class c, :math:`\mu_G` the mean of these means and
:math:`m_c = \mu_c - \mu_G`, features have collapsed when all four metrics are zero.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tammes._common import tensor_checks
from tammes._common.row_blocks import double, row_slices
from tammes._common.types import Embeddings, Labels, PerSample, Prototypes
from tammes.geometry import sphere
from tammes.geometry.hull import one_vs_rest_margins
from tammes.geometry.margins import gamma_min_ceiling


class Simplicity(NamedTuple):
    r"""How far k vectors are from a regular simplex centered at the origin; all zero for a simplex.

    `norms` is the spread of the lengths, std over mean; `angles` the std of the cosines of all pairs;
    `distance` the mean of :math:`|\cos + 1/(k-1)|` over them.
    """

    norms: float
    angles: float
    distance: float


class NeuralCollapse(NamedTuple):
    """NC1 to NC4; NC2 is measured of the class means and of the prototypes."""

    nc1: float
    nc2_means: Simplicity
    nc2_weight: Simplicity
    nc3: float
    nc4: float


@torch.no_grad()
def neural_collapse(embeddings: Embeddings, weight: Prototypes, labels: Labels) -> NeuralCollapse:
    r"""NC1 to NC4 of features and prototypes.

    - NC1, within-class variability: :math:`\tfrac{1}{k} \operatorname{tr}(\Sigma_W \Sigma_B^+)` with
      :math:`\Sigma_W` the mean of :math:`(z - \mu_y)(z - \mu_y)^T` and :math:`\Sigma_B` that of
      :math:`m_c m_c^T`. Infinite when all class means coincide.
    - NC2, means (and prototypes) form a simplex: see `Simplicity`.
    - NC3, prototypes and means agree: :math:`\| W / \|W\|_F - M / \|M\|_F \|_F^2`.
    - NC4, the prototypes classify like the nearest class mean: the fraction of samples where
      :math:`\arg\max_c w_c \cdot z` is not :math:`\arg\min_c \|z - \mu_c\|`.

    Every class has the same weight in NC1 and NC4, regardless of its number of samples. Nothing is
    normalized: for a head that compares cosines, pass unit embeddings and unit prototypes. Computed in
    float64.
    """
    k, d = tensor_checks.check_prototypes(weight)
    tensor_checks.check_embeddings(embeddings, d)
    tensor_checks.check_per_sample("labels", labels, len(embeddings))
    tensor_checks.check_labels(labels, k, check=True)
    labels, prototypes = labels.long(), double(weight)
    means, share = _class_means(embeddings, labels, k)
    centered = means - means.mean(0)
    whiten = _whitening(centered, scale=float(means.norm()))
    variability = mismatch = 0.0
    for rows in row_slices(len(labels)):
        z, mean = double(embeddings[rows]), means[labels[rows]]
        variability += float(share[rows] @ ((z - mean) @ whiten).square().sum(1))
        mismatch += float(share[rows] @ _disagree(z, prototypes, means).to(share))
    return NeuralCollapse(
        nc1=variability if whiten.numel() else math.inf,
        nc2_means=_simplicity(centered),
        nc2_weight=_simplicity(prototypes),
        nc3=float((_unit_frobenius(prototypes) - _unit_frobenius(centered)).square().sum()),
        nc4=mismatch,
    )


def softmax_code_gap(weight: Prototypes) -> float:
    r"""How far unit prototypes are from a softmax code, the form of NC2 that also holds for k > d + 1.

    .. math::
        1 - \frac{1}{1 - \cos \theta} \min_i \operatorname{dist}(w_i, \operatorname{conv}\{w_j : j \ne i\})

    with :math:`\theta` the largest class margin of k points in d dimensions. It is 0 for a softmax code (for
    k <= d + 1 the simplex) and 1 when two prototypes coincide. If only an upper bound on :math:`\theta` is
    known, the gap of a softmax code is slightly above 0. Intended for up to a few hundred classes.

    Reference: J. Jiang et al., Generalized neural collapse for a large number of classes, 2023.

    >>> from tammes.geometry import orthoplex
    >>> softmax_code_gap(orthoplex(6, 3)) < 1e-9
    True
    """
    k, d = tensor_checks.check_prototypes(weight)
    largest = gamma_min_ceiling(k, d)
    if largest == 0:  # three or more classes on a line always coincide
        return 0.0
    return 1 - float(one_vs_rest_margins(weight).margin.min()) / largest


def _class_means(embeddings: Embeddings, labels: Labels, k: int) -> tuple[Prototypes, PerSample]:
    """Mean feature of each class, and sample weights that sum to 1 with equal weight per class."""
    counts = labels.bincount(minlength=k)
    if not counts.all():
        raise ValueError(
            f"Neural collapse needs samples of all {k} classes, got none of class {int(counts.argmin())}. "
            "Keep only the rows of weight whose class occurs, and renumber those classes from 0."
        )
    share = 1 / (k * double(counts)[labels])
    means = torch.zeros(k, embeddings.shape[1], dtype=share.dtype, device=share.device)
    for rows in row_slices(len(labels)):
        means.index_add_(0, labels[rows], k * share[rows, None] * double(embeddings[rows]))
    return means, share


def _whitening(centered: Prototypes, scale: float) -> Float[Tensor, "d rank"]:
    r"""A matrix A with :math:`A A^T = (\sum_c m_c m_c^T)^+`, where entries were of size `scale`."""
    _, size, directions = torch.linalg.svd(centered, full_matrices=False)
    kept = size > scale * max(centered.shape) * torch.finfo(centered.dtype).eps
    return directions[kept].T / size[kept]


def _disagree(z: Embeddings, weight: Prototypes, means: Prototypes) -> Bool[Tensor, " n"]:
    """Where the largest inner product and the nearest class mean give different classes."""
    nearest_mean = (z @ means.T - means.square().sum(1) / 2).argmax(1)
    return (z @ weight.T).argmax(1) != nearest_mean


def _simplicity(vectors: Prototypes) -> Simplicity:
    k = len(vectors)
    norms = torch.linalg.vector_norm(vectors, dim=1)
    units = sphere.normalize(vectors)
    cosines = (units @ units.T)[~torch.eye(k, dtype=torch.bool, device=units.device)]
    return Simplicity(
        norms=float(norms.std(correction=0) / norms.mean()),
        angles=float(cosines.std(correction=0)),
        distance=float((cosines + 1 / (k - 1)).abs().mean()),
    )


def _unit_frobenius(matrix: Prototypes) -> Prototypes:
    return matrix / torch.linalg.matrix_norm(matrix)
