"""LM-Softmax: right as a mean for balanced classes and k <= d + 1, as log-sum-exp everywhere (erratum 2)."""

import math

import pytest
import torch
from torch import Tensor

from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.margins import gamma_min, sample_margins
from tammes.geometry.simplices import polygon, simplex
from tammes.losses import GMSoftmax, LMSoftmax, Objective
from tammes.theory import free_features, lm_softmax_bound


def at(objective: Objective, w: Tensor, z: Tensor) -> float:
    return objective(z, w, torch.arange(len(w))).item()


def degrees(objective: Objective, counts: list[int], d: int) -> float:
    return math.degrees(free_features(objective, counts, d).class_margin)


@pytest.mark.parametrize(("k", "d"), [(2, 2), (3, 2), (6, 9)])
def test_lm_softmax_is_least_at_the_simplex_for_balanced_classes(k, d, trials):
    for scale in (1.0, 16.0):
        loss, bound = LMSoftmax(scale=scale), lm_softmax_bound(k, scale=scale)
        assert at(loss, simplex(k, d), simplex(k, d)) == pytest.approx(bound)
        for w, z in trials(40, simplex(k, d)):
            assert at(loss, w, z) >= bound - 1e-12


@pytest.mark.parametrize("scale", [5.0, 64.0])
def test_lm_softmax_descent_reaches_the_simplex_for_balanced_classes(scale):
    found = free_features(LMSoftmax(scale=scale), [1] * 10, 12)
    assert found.loss == pytest.approx(lm_softmax_bound(10, scale=scale))
    assert math.degrees(found.class_margin) == pytest.approx(96.38, abs=0.005)


def test_equation_3_6_lse_is_above_the_mean_and_equal_only_where_the_losses_are(units):
    scale, n = 4.0, 9
    for seed in range(20):
        w, z = units(9, 5, seed), units(9, 5, seed + 20)
        gap = at(LMSoftmax(scale=scale, reduction="lse"), w, z) - at(LMSoftmax(scale=scale), w, z)
        assert gap > math.log(n) / scale
    w = polygon(n)
    gap = at(LMSoftmax(scale=scale, reduction="lse"), w, w) - at(LMSoftmax(scale=scale), w, w)
    assert gap == pytest.approx(math.log(n) / scale)


def test_equation_3_6_lse_tends_to_minus_the_smallest_margin_and_the_mean_to_minus_the_mean_margin(units):
    w, z, y = units(7, 3, 0), units(7, 3, 1), torch.arange(7)
    for scale, slack in [(1e2, 0.1), (1e4, 1e-3), (1e6, 1e-5)]:
        lse, mean = at(LMSoftmax(scale=scale, reduction="lse"), w, z), at(LMSoftmax(scale=scale), w, z)
        assert lse == pytest.approx(-gamma_min(z, w, y).item(), abs=slack)
        assert mean == pytest.approx(-sample_margins(z, w, y).mean().item(), abs=slack)


def test_the_mean_prefers_coinciding_prototypes_in_the_plane():
    """k = 7, s = 10: some prototypes coincide at -0.36094; the heptagon has -0.30717 and 51.43 degrees."""
    mean, lse = LMSoftmax(scale=10.0), LMSoftmax(scale=10.0, reduction="lse")
    best = free_features(lse, [1] * 7, 2)
    assert math.degrees(best.class_margin) == pytest.approx(360 / 7)
    assert at(mean, best.points, best.features) == pytest.approx(-0.30717, abs=5e-6)
    collapsed = free_features(mean, [1] * 7, 2)
    assert collapsed.loss == pytest.approx(-0.36094, abs=5e-6)
    assert collapsed.class_margin < 1e-3


def test_the_mean_loses_to_lse_with_13_classes_in_three_dimensions():
    assert degrees(LMSoftmax(scale=64.0), [1] * 13, 3) == pytest.approx(30.5, abs=0.1)
    lse = degrees(LMSoftmax(scale=64.0, reduction="lse"), [1] * 13, 3)
    assert lse == pytest.approx(57.0, abs=0.1)
    assert lse < math.degrees(largest_class_margin(13, 3).angle)


@pytest.mark.parametrize(
    ("scale", "mean", "lse"), [(5.0, 18.9, 63.6), (20.0, 35.0, 84.7), (64.0, 41.6, 92.3)]
)
def test_the_mean_loses_to_lse_on_long_tailed_classes(scale, mean, lse, long_tailed):
    """Though k <= d + 1, and both tend to their limits: lse to 96.38 degrees, the mean not."""
    assert degrees(LMSoftmax(scale=scale), long_tailed, 16) == pytest.approx(mean, abs=0.06)
    assert degrees(LMSoftmax(scale=scale, reduction="lse"), long_tailed, 16) == pytest.approx(lse, abs=0.06)


def test_lse_tends_to_the_largest_class_margin_on_long_tailed_classes(long_tailed):
    lse = LMSoftmax(scale=1000.0, reduction="lse")
    assert degrees(lse, long_tailed, 16) == pytest.approx(96.38, abs=0.4)


def test_lm_is_gm_divided_by_s_as_beta2_falls_and_not_as_alpha2_falls(units):
    """With alpha2 the target's term grows without end wherever its cosine is negative (erratum 8)."""
    w, z = units(6, 4, 0), units(6, 4, 1)
    target = (w * z).sum(1)
    assert target.min() < -0.1
    lm = at(LMSoftmax(scale=7.0), w, z)
    off = [abs(at(GMSoftmax(scale=7.0, beta2=b), w, z) / 7.0 - lm) for b in (-1.0, -2.0, -4.0, -8.0)]
    assert off == sorted(off, reverse=True)
    assert off[-1] < 1e-12
    assert at(GMSoftmax(scale=7.0, alpha2=-100.0), w, z) / 7.0 > lm + 1
    aligned = units(6, 4, 0)
    gm = at(GMSoftmax(scale=7.0, alpha2=-100.0), aligned, aligned) / 7.0
    assert gm == pytest.approx(at(LMSoftmax(scale=7.0), aligned, aligned))
