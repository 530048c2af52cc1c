"""Riesz energy: closed forms, gradients at any tile size, the ends, and Lemma 2.1."""

import math

import pytest
import torch

from tammes.geometry.energy import riesz_energy
from tammes.geometry.sphere import normalize

POWERS = [0.0, 1.0, 2.5]


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def simplex_energy(k: int, power: float) -> float:
    chord = math.sqrt(2 * k / (k - 1))
    return k * (k - 1) * (chord**-power if power else -math.log(chord))


def simplex_of(k: int) -> torch.Tensor:
    return torch.eye(k, dtype=torch.float64) - 1 / k


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("rows", [1, 3, 11, 64])
def test_every_tile_size_agrees_with_the_dense_formula_in_value_and_gradient(power, rows, tile_of):
    tile_of(rows)
    w = rand(11, 4).requires_grad_()
    distance = torch.pdist(normalize(w))
    dense = 2 * (distance**-power if power else -distance.log()).sum()
    (truth,) = torch.autograd.grad(dense, w)
    energy = riesz_energy(w, power)
    (gradient,) = torch.autograd.grad(3 * energy, w)
    assert energy.item() == pytest.approx(dense.item(), rel=1e-12)
    assert torch.allclose(gradient, 3 * truth, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("power", POWERS)
def test_gradcheck(power, tile_of):
    tile_of(3)
    assert torch.autograd.gradcheck(lambda w: riesz_energy(w, power), (rand(7, 3).requires_grad_(),))


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("k", [2, 3, 8])
def test_lemma_2_1_the_simplex_has_the_least_energy(k, power):
    least = simplex_energy(k, power)
    assert riesz_energy(simplex_of(k), power).item() == pytest.approx(least)
    assert all(riesz_energy(rand(k, k, seed=seed), power).item() > least for seed in range(20))


@pytest.mark.parametrize("power", [0.0, 2.0])
def test_lemma_2_1_descent_reaches_the_simplex(power):
    w = rand(4, 5).requires_grad_()
    optimizer = torch.optim.LBFGS([w], max_iter=100, line_search_fn="strong_wolfe", tolerance_change=1e-15)

    def closure() -> float:
        optimizer.zero_grad()
        energy = riesz_energy(w, power)
        energy.backward()
        return energy.item()

    optimizer.step(closure)
    cosines = (normalize(w) @ normalize(w).T)[~torch.eye(4, dtype=torch.bool)]
    assert cosines.tolist() == pytest.approx([-1 / 3] * 12, abs=1e-5)


def test_near_prototypes_in_float32_keep_their_digits():
    w = torch.cat([rand(1, 33), rand(1, 33) + 1e-4 * rand(1, 33, seed=1)]).float()
    chord = (normalize(w[0].double()) - normalize(w[1].double())).norm().item()
    assert chord < 1e-3
    assert riesz_energy(w, 1.0).item() == pytest.approx(2 / chord, rel=1e-6)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("seed", range(5))
def test_coincident_prototypes_have_infinite_energy_and_do_not_push_each_other(power, seed):
    one, other = rand(2, 33, seed=seed)
    w = torch.stack([one, 3 * one, other]).float().requires_grad_()
    energy = riesz_energy(w, power)
    energy.backward()
    assert energy.item() == math.inf
    pair = w.detach()[1:].clone().requires_grad_()
    riesz_energy(pair, power).backward()
    assert torch.allclose(w.grad[1], pair.grad[0])


def test_a_zero_prototype_is_orthogonal_to_every_other():
    w = torch.zeros(3, 4, requires_grad=True)
    energy = riesz_energy(w, 2.0)
    energy.backward()
    assert energy.item() == pytest.approx(6 / 2)
    assert w.grad.abs().max() == 0


def test_half_precision_prototypes_get_a_gradient_of_their_own_dtype():
    w = rand(5, 3).bfloat16().requires_grad_()
    energy = riesz_energy(w, 1.0)
    energy.backward()
    assert energy.dtype == torch.float32
    assert w.grad.dtype == torch.bfloat16
    assert energy.item() == pytest.approx(riesz_energy(w.detach().double(), 1.0).item(), rel=1e-6)


def test_nan_stays_nan():
    w = rand(4, 3)
    w[2, 1] = math.nan
    assert riesz_energy(w, 1.0).isnan()


@pytest.mark.parametrize(("power", "words"), [(-1.0, "at least 0.*got -1"), (math.nan, "finite, got nan")])
def test_power_out_of_range(power, words):
    with pytest.raises(ValueError, match=words):
        riesz_energy(rand(3, 2), power)


def test_one_prototype_has_no_energy():
    with pytest.raises(ValueError, match="at least 2 classes"):
        riesz_energy(rand(1, 2), 1.0)
