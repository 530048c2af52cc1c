"""The unconstrained-features problem: raw losses with weight decay, ReLU features, fixed prototypes."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from tammes.geometry.simplices import simplex
from tammes.geometry.sphere import normalize
from tammes.losses import CrossEntropy, Focal, LMSoftmax, NormFace, SampleMargin
from tammes.theory import free_features, lm_softmax_bound


def cosines(points):
    units = normalize(points)
    return (units @ units.T)[~torch.eye(len(units), dtype=torch.bool)]


@pytest.mark.parametrize("loss", [CrossEntropy(), Focal(gamma=2.0)], ids=str)
@pytest.mark.parametrize(("k", "d"), [(3, 2), (5, 8)])
def test_raw_losses_with_weight_decay_collapse_to_a_simplex(loss, k, d):
    """Z. Zhu et al., A geometric analysis of neural collapse with unconstrained features, 2021."""
    found = free_features(loss, [1] * k, d, weight_decay=1e-2)
    torch.testing.assert_close(
        cosines(found.points), torch.full((k * (k - 1),), -1 / (k - 1)).double(), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(normalize(found.features), normalize(found.points), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("a", "b"), [(1e-2, 1e-2), (1e-3, 4e-2)])
def test_cross_entropy_with_weight_decay_is_one_number_at_the_optimum(a, b):
    """On simplices of lengths u and v only u v enters the loss, and the decay is least at a k u^2 = b v^2."""
    k = 4
    found = free_features(CrossEntropy(), [1] * k, 3, weight_decay=(a, b))

    def value(r: float) -> float:
        return math.log1p((k - 1) * math.exp(-r * k / (k - 1))) + math.sqrt(a * b * k) * r

    best = minimize_scalar(value, bounds=(0, 50), method="bounded", options={"xatol": 1e-12})
    assert found.loss == pytest.approx(best.fun, abs=1e-8)
    lengths, norms = found.points.norm(dim=1), found.features.norm(dim=1)
    assert (lengths * norms).tolist() == pytest.approx([best.x] * k, abs=1e-3)
    assert (a * k * lengths**2).tolist() == pytest.approx((b * norms**2).tolist(), rel=1e-3)


def test_minority_collapse_of_cross_entropy_with_weight_decay():
    """C. Fang et al., Exploring deep neural networks via layer-peeled model, PNAS 2021: from some ratio on
    the prototypes of rare classes are one."""
    ratios = (1, 100, 1000)
    found = {r: free_features(CrossEntropy(), [r] * 3 + [1] * 3, 6, weight_decay=0.02) for r in ratios}
    assert found[1000].merged == [[3, 4, 5]]
    assert found[1].merged == found[100].merged == []
    assert found[100].class_margin < found[1].class_margin


@pytest.mark.parametrize("k", [3, 5])
def test_relu_features_end_at_their_own_ceiling(k):
    """Erratum 14: features that are not negative have a sample margin of sqrt(k / (k - 1)) at most."""
    scale = 20.0
    found = free_features(LMSoftmax(scale=scale), [1] * k, k + 1, nonnegative=True)
    assert found.features.min() >= 0
    assert found.sample_margin == pytest.approx(math.sqrt(k / (k - 1)), abs=1e-4)
    assert found.loss == pytest.approx(math.log(k - 1) / scale - math.sqrt(k / (k - 1)), abs=1e-6)


def test_features_go_to_fixed_prototypes_which_stay():
    k, fixed = 5, simplex(5, 6)
    found = free_features(LMSoftmax(scale=9.0), [5, 4, 3, 2, 1], 6, prototypes=3 * fixed)
    torch.testing.assert_close(found.points, fixed)
    torch.testing.assert_close(found.features, fixed, atol=1e-5, rtol=0)
    assert found.loss == pytest.approx(lm_softmax_bound(k, scale=9.0))


def test_features_of_a_class_coincide_at_the_optimum():
    """NC1: more features of a class share its one best place, and the loss is what one has."""
    counts = [9, 3, 1]
    one, four = (free_features(NormFace(scale=6.0), counts, 3, per_class=n) for n in (1, 4))
    assert four.features.shape == (12, 3)
    assert four.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert four.loss == pytest.approx(one.loss, rel=1e-6)
    spread = four.features.view(3, 4, 3) - four.features.view(3, 4, 3).mean(1, keepdim=True)
    assert spread.norm(dim=2).max() < 1e-3


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="Pass weight_decay"):
        free_features(CrossEntropy(), [1, 1], 2)
    with pytest.raises(ValueError, match="weight_decay must be positive, got 0"):
        free_features(CrossEntropy(), [1, 1], 2, weight_decay=0)
    with pytest.raises(ValueError, match=r"shape \(3, 2\), one for each class, got \(2, 2\)"):
        free_features(SampleMargin(), [1, 1, 1], 2, prototypes=torch.eye(2))
    with pytest.raises(ValueError, match="per_class must be at least 1, got 0"):
        free_features(NormFace(scale=5.0), [1, 1], 2, per_class=0)
