import math

import pytest
import torch

from tammes.losses.triplet import batch_hard_triplet


def plainly(z: torch.Tensor, y: list[int], margin: float | None) -> list[float]:
    """Pair by pair."""
    losses = []
    for i in range(len(y)):
        distance = [math.dist(z[i].tolist(), z[j].tolist()) for j in range(len(y))]
        furthest = max(d for d, label in zip(distance, y, strict=True) if label == y[i])
        nearest = min(d for d, label in zip(distance, y, strict=True) if label != y[i])
        x = furthest - nearest
        losses.append(math.log1p(math.exp(x)) if margin is None else max(0.0, margin + x))
    return losses


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0, None])
def test_the_hardest_of_both_kinds_are_found(margin):
    z = torch.randn(17, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 0, 1, 0, 5, 2, 2]  # 3 twice, 5 alone
    found = batch_hard_triplet(z, torch.tensor(y), margin=margin)
    assert found.tolist() == pytest.approx(plainly(z, y, margin))


@pytest.mark.parametrize("margin", [2.0, None])
def test_gradients_are_exact(margin):
    z = torch.randn(8, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 0, 1, 1, 2, 2, 0, 1])
    assert torch.autograd.gradcheck(lambda x: batch_hard_triplet(x, y, margin=margin), (z,))


def test_coinciding_samples_have_finite_gradients():
    z = torch.zeros(4, 3, requires_grad=True)
    batch_hard_triplet(z, torch.tensor([0, 0, 1, 1])).sum().backward()
    assert torch.equal(z.grad, torch.zeros(4, 3))


def test_a_batch_of_one_class_costs_nothing():
    z = torch.randn(4, 3, requires_grad=True)
    for margin in (0.3, None):
        loss = batch_hard_triplet(z, torch.zeros(4, dtype=torch.int64), margin=margin).sum()
        (gradient,) = torch.autograd.grad(loss, z)
        assert loss == 0
        assert torch.equal(gradient, torch.zeros(4, 3))


def test_a_negative_margin_is_refused():
    with pytest.raises(ValueError, match="margin must lie in"):
        batch_hard_triplet(torch.zeros(2, 2), torch.tensor([0, 1]), margin=-0.1)
