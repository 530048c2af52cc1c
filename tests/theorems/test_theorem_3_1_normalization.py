"""Theorem 3.1: without normalization the softmax loss promises no class margin."""

import math

import pytest
import torch
from torch import Tensor

from tammes.geometry.margins import class_margin
from tammes.geometry.sphere import normalize
from tammes.losses import CrossEntropy
from tammes.theory import normface_bound


def equiangular(k: int, angle: float) -> Tensor:
    """k unit vectors in k dimensions, each pair at `angle` in (0, pi/2]."""
    gram = torch.full((k, k), math.cos(angle), dtype=torch.float64).fill_diagonal_(1.0)
    return torch.linalg.cholesky(gram)


def with_class_margin(k: int, d: int, angle: float) -> Tensor:
    """k <= d + 1 unit vectors in d dimensions whose class margin is `angle` in (0, pi/2].

    The paper takes k equiangular ones. For k = d + 1 one of them goes opposite to the mean of the others,
    which is farther than 90 degrees from each.
    """
    near = min(k, d)
    points = equiangular(near, angle)
    if k > d:
        points = torch.cat([points, normalize(-points.sum(0, keepdim=True))])
    return torch.nn.functional.pad(points, (0, d - near))


@pytest.mark.parametrize("d", [2, 3, 7])
@pytest.mark.parametrize("angle", [0.1, 1.0, math.pi / 2])
def test_theorem_3_1_equiangular_prototypes_do_not_fit_when_k_is_d_plus_1(d, angle):
    """Their Gram matrix has full rank, d + 1 (erratum 15)."""
    gram = equiangular(d + 1, angle) @ equiangular(d + 1, angle).T
    assert torch.linalg.eigvalsh(gram).min() > 1e-3


@pytest.mark.parametrize(("k", "d"), [(2, 2), (3, 2), (4, 6), (7, 6)])
@pytest.mark.parametrize("angle", [0.1, 1.0, math.pi / 2])
def test_theorem_3_1_the_infimum_is_approached_with_any_class_margin_and_never_attained(k, d, angle):
    w, y = with_class_margin(k, d, angle), torch.arange(k)
    assert class_margin(w).item() == pytest.approx(angle)
    for move_features, move_prototypes in [(True, False), (False, True)]:
        lengths = torch.logspace(0, 4, 9, dtype=torch.float64).tolist()
        losses = [
            CrossEntropy()(w * s if move_features else w, w * s if move_prototypes else w, y).item()
            for s in lengths
        ]
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < 1e-12
        assert min(losses[:5]) > 0


@pytest.mark.parametrize(("k", "d"), [(3, 2), (6, 8)])
def test_theorem_3_1_with_both_normalized_the_loss_keeps_off_zero(k, d, units):
    cross_entropy, y = CrossEntropy(normalize=True, scale=4.0), torch.arange(k)
    for seed in range(50):
        w, z = 10 * units(k, d, seed), 1000 * units(k, d, seed + 50)
        assert cross_entropy(z, w, y) >= normface_bound(k, scale=4.0) > 1e-4
