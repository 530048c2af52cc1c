"""Theorem 3.4 and the two forms of R_sm; the ceiling of m_samp behind a ReLU."""

import math

import pytest
import torch
from torch import Tensor, tensor

from tammes.geometry.margins import class_margin, gamma_min, mean_sample_margin, sample_margin_ceiling
from tammes.geometry.simplices import polygon, simplex
from tammes.geometry.sphere import normalize
from tammes.losses import SampleMargin
from tammes.theory import free_features, sample_margin_bound

SIZES = [(2, 2), (3, 2), (6, 9)]
MAX, MEAN = SampleMargin(), SampleMargin(form="mean")


def at(objective: SampleMargin, w: Tensor, z: Tensor) -> float:
    return objective(z, w, torch.arange(len(w))).item()


@pytest.mark.parametrize(("k", "d"), SIZES)
@pytest.mark.parametrize("form", [MAX, MEAN], ids=str)
def test_theorem_3_4_the_simplex_attains_the_bound_and_nothing_beats_it(k, d, form, trials):
    assert at(form, simplex(k, d), simplex(k, d)) == pytest.approx(-k / (k - 1))
    for w, z in trials(40, simplex(k, d)):
        assert at(form, w, z) >= sample_margin_bound(k) - 1e-12


def test_theorem_3_4_descent_reaches_the_simplex():
    found = free_features(MAX, [1] * 6, 7)
    assert found.loss == pytest.approx(-6 / 5, abs=1e-6)
    assert math.degrees(found.class_margin) == pytest.approx(math.degrees(math.acos(-1 / 5)), abs=0.01)


def test_theorem_3_4_proof_holds_with_a_factor_where_a_difference_is_printed(units):
    """-(1/(k-1)) sqrt(...), not 1/(k-1) - sqrt(...) (erratum 7)."""
    for k, d in SIZES:
        for seed in range(20):
            spread = (units(k, d, seed) - units(k, d, seed).mean(0)).norm(dim=1)
            chain = [-spread.sum() / (k - 1), -(k * spread.square().sum()).sqrt() / (k - 1), -k / (k - 1)]
            assert chain[0] >= chain[1] - 1e-12
            assert chain[1] >= chain[2] - 1e-12
    printed = 1 / (6 - 1) - math.sqrt(6 * 6)
    assert printed < sample_margin_bound(6)


def test_r_sm_is_never_below_its_mean_form(units):
    """Printed the other way round in eq. B.2 (erratum 5)."""
    gaps = [
        at(MAX, units(5, 7, i), units(5, 7, -i)) - at(MEAN, units(5, 7, i), units(5, 7, -i))
        for i in range(1, 50)
    ]
    assert min(gaps) > 0.01


def test_the_mean_form_of_r_sm_is_least_where_prototypes_coincide(centered):
    """{a, a, -a, -a} ties the simplex, as does every set of unit vectors that sum to zero (erratum 5)."""
    a = tensor([[0.6, 0.8, 0.0]], dtype=torch.float64)
    twins = torch.cat([a, a, -a, -a])
    assert at(MEAN, twins, twins) == pytest.approx(sample_margin_bound(4))
    assert at(MAX, twins, twins) == pytest.approx(0.0, abs=1e-12)
    for k in (4, 5, 8):
        w = centered(k, k, seed=k)
        assert at(MEAN, w, w) == pytest.approx(sample_margin_bound(k))
        assert class_margin(w) < math.acos(-1 / (k - 1)) - 0.01
    three = centered(3, 3, seed=0)
    assert class_margin(three).item() == pytest.approx(math.acos(-1 / 2))


def test_mean_r_sm_is_a_lower_bound_of_minus_gamma_min(units):
    for seed in range(20):
        w, z = units(7, 3, seed), units(7, 3, seed + 20)
        assert -gamma_min(z, w, torch.arange(7)) >= at(MAX, w, z)


def test_r_sm_prefers_coinciding_prototypes_for_k_above_d_plus_1():
    """Five on one corner of a triangle, two alone: mean margin 3/7; the heptagon has 0.3765 (erratum 2)."""
    corners = polygon(3)[[0, 0, 0, 0, 0, 1, 2]]
    assert at(MAX, corners, corners) == pytest.approx(-3 / 7)
    assert at(MAX, polygon(7), polygon(7)) == pytest.approx(math.cos(2 * math.pi / 7) - 1)


def test_m_samp_as_printed_is_zero_for_unit_prototypes(units):
    """It has w_{y_i} in place of w_j inside the maximum (erratum 6)."""
    w, z, y = units(5, 7, 0), units(40, 7, 1), torch.arange(40) % 5
    own = (z * w[y]).sum(1)
    printed = own - torch.stack([own / w[j].norm() for j in range(5)]).amax(0)
    assert printed.abs().max() < 1e-12
    cosines = z @ w.T
    rivals = cosines.scatter(1, y[:, None], -math.inf).amax(1)
    assert mean_sample_margin(z, w, y).item() == pytest.approx((own - rivals).mean().item())


@pytest.mark.parametrize(("k", "d"), [(2, 3), (5, 7), (10, 12)])
def test_behind_a_relu_m_samp_stays_below_the_root(k, d, units):
    """At most sqrt(k/(k-1)), reached by orthogonal features (erratum 14)."""
    ceiling = math.sqrt(k / (k - 1))
    assert sample_margin_ceiling(k, d, nonnegative=True) == pytest.approx(ceiling)
    y = torch.arange(k)
    z = torch.eye(k, d, dtype=torch.float64)
    assert mean_sample_margin(z, normalize(z - z.mean(0)), y).item() == pytest.approx(ceiling)
    for seed in range(60):
        z = normalize(units(k, d, seed).relu() + 1e-9)
        assert mean_sample_margin(z, normalize(z - z.mean(0)), y) <= ceiling + 1e-12


def test_behind_a_relu_descent_of_r_sm_reaches_the_root(units):
    k, d = 5, 7
    raw, w = units(k, d, 0).abs().requires_grad_(), units(k, d, 1).requires_grad_()
    optimizer = torch.optim.Adam([raw, w], lr=0.03)
    for _ in range(400):
        optimizer.zero_grad()
        loss = MAX(raw.relu(), w, torch.arange(k))
        loss.backward()
        optimizer.step()
        assert loss >= -math.sqrt(k / (k - 1)) - 1e-12
    assert -loss.item() == pytest.approx(math.sqrt(k / (k - 1)), abs=0.02)
