"""Theorems 3.2 and 3.5, Proposition 3.3: GM-Softmax and its family are least at the simplex."""

import math

import pytest
import torch
from torch import Tensor

from tammes.geometry.simplices import simplex
from tammes.losses import (
    LDAM,
    ArcFace,
    CombinedMargin,
    CosFace,
    CrossEntropy,
    Focal,
    GMSoftmax,
    HypersphericalEnergy,
    LMSoftmax,
    LSoftmax,
    NormFace,
    Objective,
    SampleMargin,
    SphereFace,
    ZeroCentroid,
)
from tammes.theory import (
    alpha1_threshold,
    arcface_bound,
    cosface_bound,
    free_features,
    gm_softmax_bound,
    largest_arcface_margin,
    lm_softmax_bound,
    normface_bound,
    value_at_simplex,
)

SIZES = [(2, 2), (3, 2), (6, 9)]
PARAMETERS = [
    {"alpha1": 1.0, "alpha2": 1.0, "beta1": 0.0, "beta2": 0.0},
    {"alpha1": 0.5, "alpha2": 0.5, "beta1": -0.3, "beta2": -0.3},
    {"alpha1": 0.8, "alpha2": -0.4, "beta1": 0.2, "beta2": 0.7},
    {"alpha1": 2.0, "alpha2": 0.0, "beta1": 0.5, "beta2": -1.0},
]


def at(objective: Objective, w: Tensor, z: Tensor, counts: list[int] | None = None) -> float:
    weights = None if counts is None else torch.tensor(counts, dtype=torch.float64)
    return objective(z, w, torch.arange(len(w)), sample_weight=weights).item()


def printed_bound(k: int, scale: float, alpha1: float, alpha2: float, beta1: float, beta2: float) -> float:
    """As the paper states it, in both theorems."""
    own = math.exp(scale * (alpha1 + beta1 - alpha2 - beta2))
    return math.log(own + (k - 1) * math.exp(-scale * (1 / (k - 1) + alpha1 + beta1)))


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize(("k", "d"), SIZES)
def test_theorem_3_2_the_simplex_attains_the_bound_and_nothing_beats_it(k, d, parameters, trials):
    for scale in (1.0, 7.0):
        loss = GMSoftmax(scale=scale, **parameters)
        bound = gm_softmax_bound(k, scale=scale, **parameters)
        assert at(loss, simplex(k, d), simplex(k, d)) == pytest.approx(bound)
        for w, z in trials(40, simplex(k, d)):
            assert at(loss, w, z) >= bound - 1e-12


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_theorem_3_2_descent_reaches_the_simplex(parameters):
    found = free_features(GMSoftmax(scale=4.0, **parameters), [1] * 6, 7)
    assert found.loss == pytest.approx(gm_softmax_bound(6, scale=4.0, **parameters))
    assert math.degrees(found.class_margin) == pytest.approx(math.degrees(math.acos(-1 / 5)), abs=1e-3)


def test_theorem_3_2_printed_bound_is_beaten():
    """Its first exponent has the wrong sign (erratum 3)."""
    parameters = {"alpha1": 1.0, "alpha2": 0.5, "beta1": 0.2, "beta2": 0.0}
    reached = at(GMSoftmax(scale=3.0, **parameters), simplex(5, 4), simplex(5, 4))
    assert reached < printed_bound(5, 3.0, **parameters) - 1


@pytest.mark.parametrize("k", [3, 5, 30])
def test_theorem_3_2_needs_alpha1_at_the_threshold_and_no_more(k, units, trials):
    """Below (k-2)/(2k-2) prototypes that coincide, features at the antipode, win; at it they tie."""
    threshold, collapsed = alpha1_threshold(k), units(1, k, 0).expand(k, k)
    for scale in (1.0, 8.0):
        for alpha1, sign in [(threshold - 0.02, -1), (threshold + 0.02, 1)]:
            loss = GMSoftmax(scale=scale, alpha1=alpha1, alpha2=alpha1)
            best = value_at_simplex(loss, k)
            assert sign * (at(loss, collapsed, -collapsed) - best) > 1e-4
        loss = GMSoftmax(scale=scale, alpha1=threshold, alpha2=threshold)
        best = value_at_simplex(loss, k)
        assert at(loss, collapsed, -collapsed) == pytest.approx(best)
        for w, z in trials(40, simplex(k, k)):
            assert at(loss, w, z) >= best - 1e-12


def test_theorem_3_2_descent_leaves_the_simplex_below_the_threshold():
    above, below = (alpha1_threshold(5) + step for step in (0.05, -0.05))
    found = free_features(GMSoftmax(scale=6.0, alpha1=above, alpha2=above), [1] * 5, 5)
    assert found.class_margin == pytest.approx(math.acos(-1 / 4), abs=1e-5)
    loss = GMSoftmax(scale=6.0, alpha1=below, alpha2=below)
    found = free_features(loss, [1] * 5, 5)
    assert found.loss < value_at_simplex(loss, 5) - 1e-3
    assert found.class_margin < 1e-3


UNIFIED: dict[Objective, float] = {
    NormFace(scale=6.0): 0.0,
    CosFace(scale=6.0, margin=0.35): 0.35,
    SphereFace(scale=6.0, margin=4.0): 0.0,
    SphereFace(scale=6.0, margin=1.35): 0.0,
    ArcFace(scale=6.0, margin=0.5): 1 - math.cos(0.5),
    ArcFace(scale=6.0, margin=1.5): 1 - math.cos(1.5),
    ArcFace(scale=6.0, margin=1.5, beyond_pi="clip"): 1 - math.cos(1.5),
    ArcFace(scale=6.0, margin=1.0, beyond_pi="plain"): 1 - math.cos(1.0),
    CombinedMargin(scale=6.0, m1=1.5, m2=0.3, m3=0.2): 1.2 - math.cos(0.3),
}
"""Losses of Proposition 3.3, and what their margin takes off the target's logit at theta = 0."""


@pytest.mark.parametrize("loss", UNIFIED, ids=str)
def test_proposition_3_3_the_simplex_is_least_for_every_margin_loss(loss, trials):
    bound = cosface_bound(6, scale=6.0, margin=UNIFIED[loss])
    assert value_at_simplex(loss, 6) == pytest.approx(bound)
    for w, z in trials(40, simplex(6, 9)):
        assert at(loss, w, z) >= bound - 1e-12
        assert at(loss, w, -w) >= bound - 1e-12


@pytest.mark.parametrize("loss", UNIFIED, ids=str)
def test_proposition_3_3_descent_reaches_the_simplex(loss):
    found = free_features(loss, [1] * 6, 7)
    assert math.degrees(found.class_margin) == pytest.approx(math.degrees(math.acos(-1 / 5)), abs=0.01)
    assert found.loss == pytest.approx(cosface_bound(6, scale=6.0, margin=UNIFIED[loss]), rel=1e-5)


@pytest.mark.parametrize("k", [3, 4, 50])
def test_plain_arcface_is_least_at_the_simplex_up_to_its_largest_margin(k, units):
    """cos m must reach the threshold of alpha1; the paper asks for cos m >= 1/2 (erratum 4)."""
    collapsed = units(1, k, 0).expand(k, k)
    largest = largest_arcface_margin(k)
    for margin, sign in [(largest - 0.02, 1), (largest + 0.02, -1)]:
        loss = ArcFace(scale=4.0, margin=margin, beyond_pi="plain")
        assert value_at_simplex(loss, k) == pytest.approx(arcface_bound(k, scale=4.0, margin=margin))
        assert sign * (at(loss, collapsed, -collapsed) - value_at_simplex(loss, k)) > 1e-4
    assert math.cos(largest_arcface_margin(10**6)) == pytest.approx(0.5, abs=1e-5)


CATALOGUE_EXAMPLES: list[Objective] = [
    *UNIFIED,
    CrossEntropy(),
    Focal(gamma=2.0, normalize=True, scale=5.0),
    LSoftmax(margin=2.0),
    GMSoftmax(scale=3.0, alpha1=0.9, alpha2=0.2, beta1=(0.1, 0.2, 0.3, 0.4, 0.5), beta2=-0.1),
    LMSoftmax(scale=9.0),
    LMSoftmax(scale=9.0, reduction="lse"),
    LDAM(scale=5.0),
    SampleMargin(),
    SampleMargin(form="mean"),
    ZeroCentroid() + 0.5 * NormFace(scale=3.0, label_smoothing=0.1),
    HypersphericalEnergy(power=2.0),
]


@pytest.mark.parametrize("objective", CATALOGUE_EXAMPLES, ids=str)
def test_values_at_the_simplex_are_those_of_the_simplex(objective):
    counts = [9.0, 5.0, 3.0, 2.0, 1.0]
    weights, w = torch.tensor(counts, dtype=torch.float64), simplex(5, 6)
    built = objective(w, w, torch.arange(5), sample_weight=weights, class_counts=weights)
    assert value_at_simplex(objective, 5, counts=counts) == pytest.approx(built.item())


def test_bounds_by_name_are_values_at_the_simplex():
    for k in (2, 3, 10, 10_575):
        assert normface_bound(k, scale=30.0) == pytest.approx(value_at_simplex(NormFace(scale=30.0), k))
        assert lm_softmax_bound(k, scale=30.0) == pytest.approx(value_at_simplex(LMSoftmax(scale=30.0), k))


PER_CLASS = {
    "alpha1": (1.0, 0.0, 0.6, 0.5, 2.0, 1.0),
    "alpha2": (1.0, -0.5, 0.6, 0.1, 0.0, 0.5),
    "beta1": (0.0, -0.4, 0.3, 0.0, 0.1, -0.2),
    "beta2": (0.0, 0.4, 0.3, -0.8, 0.0, -0.2),
}


def test_theorem_3_5_with_a_zero_centroid_nothing_beats_the_bound_on_any_class_sizes(centered, units):
    """Also with alpha1 = 0, where the paper asks for 1/2: only alpha1 >= -1/(k-1) is needed."""
    counts = [400, 150, 60, 25, 10, 1]
    loss = GMSoftmax(scale=3.0, **PER_CLASS)
    bound = gm_softmax_bound(6, scale=3.0, **PER_CLASS, counts=counts)
    assert at(loss, simplex(6, 5), simplex(6, 5), counts) == pytest.approx(bound)
    for seed in range(30):
        w = centered(6, 5, seed)
        for z in (w, units(6, 5, seed)):
            assert at(loss, w, z, counts) >= bound - 1e-12


def test_theorem_3_5_printed_bound_is_beaten_too():
    parameters = {name: values[4] for name, values in PER_CLASS.items()}
    reached = at(GMSoftmax(scale=3.0, **parameters), simplex(6, 5), simplex(6, 5), [5, 4, 3, 2, 1, 1])
    assert reached < printed_bound(6, 3.0, **parameters) - 1


def test_theorem_3_5_without_the_zero_centroid_imbalance_beats_the_bound(long_tailed):
    found = free_features(NormFace(scale=5.0), long_tailed, 10)
    assert found.loss < gm_softmax_bound(10, scale=5.0, counts=long_tailed) - 1e-3
    assert found.points.mean(0).norm() > 0.1
    assert math.degrees(found.class_margin) < 70


def test_theorem_3_5_descent_with_a_heavy_r_w_reaches_the_simplex_on_any_class_sizes():
    counts = [500, 90, 20, 4, 1]
    plain, heavy = (
        free_features(objective, counts, 6).class_margin
        for objective in (NormFace(scale=5.0), NormFace(scale=5.0) + 100.0 * ZeroCentroid())
    )
    assert plain < math.radians(70)
    assert math.degrees(heavy) == pytest.approx(math.degrees(math.acos(-1 / 4)), abs=0.03)
