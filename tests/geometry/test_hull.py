"""One-vs-rest margins: closed forms, the certificate, and Theorem 2.2's formula that they refute."""

import math

import pytest
import torch
from torch import tensor

from tammes.geometry.hull import one_vs_rest_margins
from tammes.geometry.margins import sample_margins
from tammes.geometry.sphere import normalize


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("k", [2, 3, 9])
def test_the_simplex_has_k_over_k_minus_1(k):
    simplex = 5 * (torch.eye(k, dtype=torch.float64) - 1 / k)
    assert one_vs_rest_margins(simplex).margin.tolist() == pytest.approx([k / (k - 1)] * k)


def test_in_the_plane_it_is_the_distance_to_a_segment():
    turn = tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    w = torch.stack([turn.cos(), turn.sin()], 1)
    # From the middle point to the chord of the outer two, and from each outer one to its nearest end.
    middle = math.cos(0.5 - 1.0) - math.cos(1.0)
    assert one_vs_rest_margins(w).margin.tolist() == pytest.approx(
        [2 * math.sin(0.25), middle, 2 * math.sin(0.75)]
    )


def test_a_prototype_inside_the_hull_of_the_others_has_margin_zero():
    w = tensor([[0.0, 0.0], [1.0, 0.1], [-1.0, 0.5], [0.2, -1.0]])
    margin, gap = one_vs_rest_margins(w)
    assert margin[0].item() == pytest.approx(0, abs=1e-7)
    assert 0 <= gap[0] <= margin[0] + 1e-12
    assert (margin[1:] > 0.5).all()


@pytest.mark.parametrize(("k", "d"), [(5, 3), (9, 64), (40, 7)])
def test_the_gap_certifies_the_distance(k, d):
    w = rand(k, d)
    margin, gap = one_vs_rest_margins(w)
    assert gap.abs().max() < 1e-12
    units = normalize(w)
    assert (margin > 0).all()
    assert (margin <= torch.cdist(units, units).fill_diagonal_(9).amin(1) + 1e-12).all()


def test_no_feature_has_a_larger_sample_margin():
    w, features = rand(6, 3, seed=3), rand(4000, 3, seed=4)
    margins = one_vs_rest_margins(w).margin
    for label, margin in enumerate(margins):
        best = sample_margins(features, w, torch.full((4000,), label)).max()
        assert margin - 0.02 < best <= margin + 1e-12


def test_theorem_2_2_the_centroid_of_the_nearest_prototypes_does_not_give_the_best_feature():
    w = tensor([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, 0, 1], [0, 0, -1]], dtype=torch.float64)
    nearest = [1, 3, 4]  # at 90 degrees from class 0
    printed = normalize(w[0] - w[nearest].mean(0))
    features = torch.stack([printed, w[0]])
    margins = sample_margins(features, w, tensor([0, 0]))
    assert margins.tolist() == pytest.approx([0.948683, 1.0], abs=1e-6)
    assert one_vs_rest_margins(w).margin[0].item() == pytest.approx(1.0)


def test_a_prototype_that_is_not_finite_is_named():
    w = rand(3, 2)
    w[1, 0] = math.inf
    with pytest.raises(ValueError, match=r"weight must be finite, got inf at \[1, 0\]"):
        one_vs_rest_margins(w)
