"""Lemma 2.1, Theorem 2.2 and Proposition 2.3: which prototypes and features have the largest margins."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor, tensor

from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.energy import riesz_energy
from tammes.geometry.hull import one_vs_rest_margins
from tammes.geometry.margins import class_margin, gamma_min, gamma_min_ceiling, sample_margins
from tammes.geometry.simplices import orthoplex, polygon, simplex
from tammes.geometry.sphere import normalize
from tammes.losses import HypersphericalEnergy, LMSoftmax
from tammes.theory import free_features

SIZES = [(2, 2), (3, 2), (5, 4), (6, 9)]


def cosines(points: Tensor) -> Tensor:
    """Of all pairs of different points."""
    products = points @ points.T
    return products[~torch.eye(len(points), dtype=torch.bool)]


@pytest.mark.parametrize("power", [0.5, 2.0, 7.0])
@pytest.mark.parametrize(("k", "d"), SIZES)
def test_lemma_2_1_no_points_have_less_riesz_energy_than_the_simplex(k, d, power, trials):
    least = riesz_energy(simplex(k, d), power)
    for points, _ in trials(40, simplex(k, d)):
        assert riesz_energy(points, power) >= least * (1 - 1e-12)


def test_equation_2_4_as_printed_cannot_tell_a_packing_from_others():
    """Its limit is 0 wherever all distances exceed 1: at the square, and at a worse rectangle."""
    angles = tensor([0.0, 75.0, 180.0, 255.0]).double().deg2rad()
    rectangle = torch.stack([angles.cos(), angles.sin()], 1)
    assert class_margin(rectangle) < class_margin(polygon(4))
    assert torch.cdist(rectangle, rectangle).fill_diagonal_(9.0).min() > 1
    for points in (polygon(4), rectangle):
        assert riesz_energy(points, 400.0) < 1e-30
    # The best packing of seven in the plane has distances below 1, and grows to infinity as all others do.
    assert riesz_energy(polygon(7), 400.0) > 1e20


@pytest.mark.parametrize(("k", "d", "power"), [(3, 2, 1.0), (5, 4, 2.0), (6, 9, 7.0)])
def test_lemma_2_1_descent_of_the_energy_reaches_the_simplex(k, d, power):
    found = free_features(HypersphericalEnergy(power=power), [1] * k, d)
    torch.testing.assert_close(cosines(found.points), torch.full((k * (k - 1),), -1 / (k - 1)).double())


@pytest.mark.parametrize(("k", "d"), SIZES)
def test_lemma_2_1_no_points_have_a_larger_class_margin_than_the_simplex(k, d, trials):
    largest = math.acos(-1 / (k - 1))
    assert class_margin(simplex(k, d)).item() == pytest.approx(largest)
    for points, _ in trials(40, simplex(k, d)):
        assert class_margin(points) <= largest + 1e-9


def icosahedron() -> Tensor:
    golden = (1 + math.sqrt(5)) / 2
    corners = [[0.0, a, b * golden] for a in (1, -1) for b in (1, -1)]
    return normalize(tensor([row[i:] + row[:i] for row in corners for i in range(3)], dtype=torch.float64))


TAMMES = {
    "triangle": polygon(3),
    "heptagon": polygon(7),
    "simplex": simplex(5, 6),
    "part of the orthoplex": orthoplex(6, 4),
    "icosahedron": icosahedron(),
}


def best_features(weight: Tensor) -> Tensor:
    """For each class the unit feature with the largest sample margin: away from the others' convex hull."""
    rows = []
    for i in range(len(weight)):
        apart = (weight[i] - torch.cat([weight[:i], weight[i + 1 :]])).numpy()
        shares, _ = nnls(np.vstack([apart.T, np.ones(len(apart))]), np.eye(apart.shape[1] + 1)[-1])
        rows.append(torch.from_numpy(shares @ apart))
    return normalize(torch.stack(rows))


@pytest.mark.parametrize("name", TAMMES)
def test_theorem_2_2_tammes_points_with_features_on_them_have_gamma_min_1_minus_cos_theta(name):
    w = TAMMES[name]
    theta = largest_class_margin(*w.shape)
    assert theta.exact
    assert class_margin(w).item() == pytest.approx(theta.angle, abs=1e-9)
    assert gamma_min(w, w, torch.arange(len(w))).item() == pytest.approx(1 - math.cos(theta.angle))


@pytest.mark.parametrize("name", TAMMES)
def test_theorem_2_2_no_points_and_features_have_a_larger_gamma_min(name, trials):
    best = TAMMES[name]
    largest = gamma_min_ceiling(*best.shape)
    for w, _ in trials(40, best):
        assert one_vs_rest_margins(w).margin.min() <= largest + 1e-9


@pytest.mark.parametrize(("k", "d"), [(3, 2), (7, 2), (5, 3), (13, 3), (9, 6)])
def test_theorem_2_2_midpoints_of_prototypes_and_features_are_a_packing_as_good_as_gamma_min(k, d, units):
    """The proof that the paper lacks: cos(u_i, u_j) <= 1 - gamma_min for u_i half-way from w_i to z_i."""
    for seed in range(40):
        w = units(k, d, seed)
        z = best_features(w)
        gamma = gamma_min(z, w, torch.arange(k)).item()
        if gamma <= 0:  # a prototype among the others, within their hull
            continue
        assert (w * z).sum(1).min() >= -1e-9
        assert cosines(normalize(w + z)).max() <= 1 - gamma + 1e-9


def test_theorem_2_2_descent_to_the_largest_gamma_min_reaches_tammes_points():
    k, d = 8, 3
    found = free_features(LMSoftmax(scale=256.0, reduction="lse"), [1] * k, d)
    largest = largest_class_margin(k, d)
    assert largest.exact
    assert math.degrees(found.class_margin) == pytest.approx(math.degrees(largest.angle), abs=0.1)
    reached = gamma_min(found.features, found.points, torch.arange(k)).item()
    assert reached == pytest.approx(1 - math.cos(largest.angle), abs=3e-3)
    assert (found.features * found.points).sum(1).min() > 1 - 1e-4


def test_theorem_2_2_printed_value_the_chord_is_out_of_reach():
    for k in (3, 7, 20):
        chord = 2 * math.sin(largest_class_margin(k, 2).angle / 2)
        assert gamma_min_ceiling(k, 2) < chord - 0.01


def test_theorem_2_2_printed_features_are_not_the_best():
    """Away from the centroid of the nearest prototypes: 0.948683; on the prototype: 1 (erratum 1)."""
    w = tensor([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, 0, 1], [0, 0, -1]], dtype=torch.float64)
    assert class_margin(w).item() == pytest.approx(largest_class_margin(5, 3).angle)
    nearest = w[[1, 3, 4]]
    printed = (w[0] - nearest.mean(0))[None]
    first = torch.zeros(1, dtype=torch.long)
    assert sample_margins(printed, w, first).item() == pytest.approx(0.948683, abs=1e-6)
    assert sample_margins(w[:1], w, first).item() == pytest.approx(1.0)


@pytest.mark.parametrize(("k", "d"), [*SIZES, (100, 99)])
def test_proposition_2_3_the_simplex_attains_the_largest_margins(k, d):
    w = simplex(k, d)
    gamma = sample_margins(w, w, torch.arange(k))
    assert class_margin(w).item() == pytest.approx(math.acos(-1 / (k - 1)))
    assert gamma.tolist() == pytest.approx([k / (k - 1)] * k)


@pytest.mark.parametrize(("k", "d"), SIZES)
def test_proposition_2_3_nothing_beats_gamma_min_of_the_simplex(k, d, trials):
    for w, z in trials(40, simplex(k, d)):
        assert gamma_min(z, w, torch.arange(k)) <= k / (k - 1) + 1e-12
