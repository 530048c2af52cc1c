"""Neural collapse: zero at collapse, the printed formulas elsewhere, every class with the same weight."""

import math

import pytest
import torch
from torch import tensor

from tammes.geometry.packing import pack
from tammes.geometry.simplices import orthoplex, polygon, simplex
from tammes.geometry.sphere import normalize
from tammes.metrics.collapse import neural_collapse, softmax_code_gap


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def simplex_of(k: int) -> torch.Tensor:
    return torch.eye(k, dtype=torch.float64) - 1 / k


def batch(k: int = 5, d: int = 7, per_class: int = 6):
    """Features, prototypes and labels of a balanced problem that is far from collapse."""
    w, labels = rand(k, d), torch.arange(k * per_class) % k
    return rand(k, d, seed=1)[labels] + 0.7 * rand(len(labels), d, seed=2), w, labels


def test_all_measures_vanish_at_collapse():
    labels = torch.arange(15) % 5
    simplex = torch.nn.functional.pad(simplex_of(5), (0, 1))
    away = tensor([0.0, 0, 0, 0, 0, 9])  # the features need not lie round the origin
    measured = neural_collapse(simplex[labels] + away, 3 * simplex, labels)
    assert measured.nc4 == 0
    flat = [measured.nc1, *measured.nc2_means, *measured.nc2_weight, measured.nc3]
    assert flat == pytest.approx([0] * 8, abs=1e-7)


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_nc1_and_nc3_are_the_printed_formulas(rows, tile_of):
    tile_of(rows)
    z, w, labels = batch()
    means = torch.stack([z[labels == c].mean(0) for c in range(5)])
    centered = means - z.mean(0)
    residual = z - means[labels]
    within, between = residual.T @ residual / len(z), centered.T @ centered / 5
    measured = neural_collapse(z, w, labels)
    assert measured.nc1 == pytest.approx(
        torch.trace(within @ torch.linalg.pinv(between, rtol=1e-9)).item() / 5
    )
    assert measured.nc3 == pytest.approx((w / w.norm() - centered / centered.norm()).square().sum().item())


def test_nc2_of_orthogonal_prototypes_of_two_lengths():
    z, _, labels = batch(k=4, d=4)
    w = torch.diag(tensor([1.0, 1.0, 3.0, 3.0], dtype=torch.float64))
    assert tuple(neural_collapse(z, w, labels).nc2_weight) == pytest.approx((0.5, 0.0, 1 / 3))


def test_nc2_of_the_means_is_of_the_centered_means():
    z, w, labels = batch()
    centered = torch.stack([z[labels == c].mean(0) for c in range(5)])
    centered = centered - centered.mean(0)
    cosines = torch.tensor(
        [
            (normalize(centered[i]) @ normalize(centered[j])).item()
            for i in range(5)
            for j in range(5)
            if i != j
        ]
    )
    norms, angles, distance = neural_collapse(z, w, labels).nc2_means
    lengths = centered.norm(dim=1)
    assert norms == pytest.approx((lengths.std(correction=0) / lengths.mean()).item())
    assert angles == pytest.approx(cosines.std(correction=0).item())
    assert distance == pytest.approx((cosines + 0.25).abs().mean().item())


def test_nc3_is_4_when_prototypes_oppose_the_means():
    labels = torch.arange(6) % 3
    assert neural_collapse(simplex_of(3)[labels], -simplex_of(3), labels).nc3 == pytest.approx(4)


def test_nc4_counts_each_class_alike():
    z = tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    wrong_for_the_first_three = tensor([[-1.0, 0.0], [0.0, 1.0]])
    assert neural_collapse(z, wrong_for_the_first_three, tensor([0, 0, 0, 1])).nc4 == pytest.approx(0.5)


def test_nc4_asks_for_the_nearest_mean_not_the_largest_product_with_one():
    z = tensor([[-2.0], [4.0], [10.0]])  # means 1 and 10
    # The prototypes say 1, 0, 0; the nearest means 0, 0, 1; the products with the means 0, 1, 1.
    assert neural_collapse(z, tensor([[1.0], [0.0]]), tensor([0, 0, 1])).nc4 == pytest.approx(0.75)


def test_repeating_the_samples_of_one_class_changes_nothing():
    z, w, labels = batch()
    more = labels == 2
    repeated = neural_collapse(
        torch.cat([z, z[more], z[more]]), w, torch.cat([labels, labels[more], labels[more]])
    )
    once = neural_collapse(z, w, labels)
    assert repeated.nc1 == pytest.approx(once.nc1)
    assert repeated.nc4 == pytest.approx(once.nc4)
    assert repeated.nc2_means == pytest.approx(once.nc2_means)


def test_rotation_and_scale_change_nothing():
    z, w, labels = batch()
    turn = 3 * torch.linalg.qr(rand(7, 7, seed=9)).Q
    before, after = neural_collapse(z, w, labels), neural_collapse(z @ turn, w @ turn, labels)
    for one, other in zip(before, after, strict=True):
        assert one == pytest.approx(other)


def test_nc1_is_infinite_when_all_means_coincide():
    assert neural_collapse(torch.ones(9, 4) / 3, rand(3, 4).float(), torch.arange(9) % 3).nc1 == math.inf


def test_a_class_without_samples_is_named():
    with pytest.raises(ValueError, match="samples of all 3 classes, got none of class 1"):
        neural_collapse(rand(4, 2), rand(3, 2), tensor([0, 2, 2, 0]))


@pytest.mark.parametrize("code", [simplex(5, 7), orthoplex(7, 4), polygon(9), pack(12, 3).points], ids=len)
def test_the_gap_to_a_softmax_code_is_zero_for_one(code):
    assert softmax_code_gap(3 * code) == pytest.approx(0.0, abs=1e-7)


def test_the_gap_to_a_softmax_code_is_one_where_prototypes_meet_and_between_elsewhere():
    weight = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert 0.05 < softmax_code_gap(weight) < 1
    weight[4] = 2 * weight[3]
    assert softmax_code_gap(weight) == pytest.approx(1.0, abs=1e-7)
    assert softmax_code_gap(tensor([[1.0], [-1.0], [1.0]])) == 0.0  # nothing better exists in one dimension
