"""Softmax codes (largest gamma_min with free features) against the Tammes problem, for k > d + 1."""

import math

import pytest
import torch

from tammes.geometry.hull import one_vs_rest_margins
from tammes.geometry.margins import class_margin, gamma_min
from tammes.geometry.packing import pack, softmax_code
from tammes.geometry.simplices import simplex
from tammes.geometry.sphere import normalize
from tammes.losses import LMSoftmax
from tammes.theory import free_features


def bisectors(weight, features):
    """Halfway between each prototype and its feature."""
    return normalize(weight + features)


@pytest.mark.parametrize(("k", "d"), [(3, 2), (5, 3), (9, 3), (12, 4), (20, 6)])
@pytest.mark.parametrize("noise", [0.05, 0.2, 0.5])
def test_bisectors_are_no_nearer_than_the_smallest_sample_margin_allows(k, d, noise):
    """Whatever W and Z with w_i . z_i >= 0: the angles of (w_i + z_i) / |w_i + z_i| are at least
    acos(1 - gamma_min). So no gamma_min exceeds 1 - cos of the Tammes angle (erratum 1 has the proof)."""
    generator = torch.Generator().manual_seed(k * d)
    for _ in range(40):
        weight = normalize(torch.randn(k, d, dtype=torch.float64, generator=generator))
        features = normalize(weight + noise * torch.randn(k, d, dtype=torch.float64, generator=generator))
        if ((weight * features).sum(1) < 0).any():
            continue
        gamma = float(gamma_min(features, weight, torch.arange(k)))
        if gamma > 0:
            assert math.cos(float(class_margin(bisectors(weight, features)))) <= 1 - gamma + 1e-12


@pytest.mark.parametrize(("k", "d"), [(5, 2), (8, 3), (10, 4)])
def test_the_softmax_code_is_a_tammes_code_where_nothing_rattles(k, d):
    code, packing = softmax_code(k, d), pack(k, d)
    assert len(packing.rattlers) == 0
    assert code.gamma == pytest.approx(packing.gamma, abs=1e-7)
    assert float(class_margin(code.weight)) == pytest.approx(packing.angle, abs=1e-4)
    torch.testing.assert_close(code.features, code.weight, atol=1e-4, rtol=0)


def test_no_softmax_code_is_found_near_a_packing_that_beats_it():
    """Theorem 2.2, from the other side: descent that starts at the optimal packing ends where it began."""
    packing = pack(9, 3)
    code = softmax_code(9, 3, start=packing.points)
    assert code.gamma == pytest.approx(packing.gamma, abs=1e-9)
    torch.testing.assert_close(
        code.weight @ code.weight.T, packing.points @ packing.points.T, atol=1e-6, rtol=0
    )


def test_a_start_is_improved():
    rough = normalize(
        pack(9, 3).points + 0.05 * torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    )
    before = float(gamma_min(rough, rough, torch.arange(9)))
    assert softmax_code(9, 3, start=rough).gamma > before + 0.01
    with pytest.raises(ValueError, match="start must have shape"):
        softmax_code(8, 3, start=rough)


@pytest.mark.parametrize("dimensions", [(1, 2), (1, 3), (2, 2), (1, 1, 2), (1, 1, 1), (2, 3, 1)])
def test_the_orthoplex_regime_is_a_family_of_simplices_at_right_angles(dimensions):
    """d + 2 <= k <= 2 d: regular simplices in k - d orthogonal spaces of any dimensions have 90 degrees
    and gamma_min = 1, which nothing exceeds (Rankin). The orthoplex is the member made of segments."""
    weight = torch.block_diag(*(simplex(n + 1, n) for n in dimensions))
    k, d = weight.shape
    assert d + 2 <= k <= 2 * d
    assert math.degrees(class_margin(weight)) == pytest.approx(90.0)
    assert gamma_min(weight, weight, torch.arange(k)).item() == pytest.approx(1.0)
    assert one_vs_rest_margins(weight).margin.tolist() == pytest.approx([1.0] * k)


@pytest.mark.parametrize(("k", "d"), [(5, 3), (7, 4)])
def test_descent_finds_a_member_of_the_family(k, d):
    code = softmax_code(k, d)
    assert code.gamma == pytest.approx(1.0, abs=1e-7)
    assert math.degrees(class_margin(code.weight)) == pytest.approx(90.0, abs=0.01)


def nonl(features, weight, labels, scale):
    """NONL without its symmetric option, from its definition: mean log sum of the wrong classes' ratios."""
    cosines = normalize(features) @ normalize(weight).T
    own = cosines.gather(1, labels[:, None])
    wrong = torch.ones_like(cosines, dtype=torch.bool).scatter(1, labels[:, None], False)
    ratios = torch.where(wrong, (scale * (cosines - own)).exp(), 0.0)
    return ratios.sum(1).log().mean()


@pytest.mark.parametrize("scale", [1.0, 8.0, 30.0])
def test_nonl_is_lm_softmax_times_its_scale(scale):
    """Neural Collapse by Design, arXiv 2605.20302: values and gradients."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(13, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    w = torch.randn(7, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    y = torch.randint(7, (13,), generator=generator)
    theirs, ours = nonl(z, w, y, scale), scale * LMSoftmax(scale=scale)(z, w, y)
    assert theirs.item() == pytest.approx(ours.item(), abs=1e-12)
    for a, b in zip(torch.autograd.grad(theirs, [z, w]), torch.autograd.grad(ours, [z, w]), strict=True):
        torch.testing.assert_close(a, b)


def test_nonl_lets_prototypes_meet_for_more_classes_than_dimensions_and_one():
    """Erratum 2 carries over: at d = 2, k = 7, s = 10 prototypes that coincide beat the regular 7-gon."""
    found = free_features(LMSoftmax(scale=10.0), [1] * 7, 2)
    turn = torch.arange(7, dtype=torch.float64) * (2 * math.pi / 7)
    polygon = torch.stack([turn.cos(), turn.sin()], dim=1)
    y = torch.arange(7)
    assert nonl(found.features, found.points, y, 10.0) < nonl(polygon, polygon, y, 10.0) - 0.3
    assert found.merged
