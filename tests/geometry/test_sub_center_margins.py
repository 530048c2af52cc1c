"""Margins with several prototypes per class, against all pairs at once."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from tammes._common.row_blocks import TILE_ROWS
from tammes.geometry import class_margin, nearest_prototypes, sample_margins


def prototypes(k, c, d=5):
    generator = torch.Generator().manual_seed(k)
    return torch.randn(k, c, d, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("k", "c"), [(2, 2), (7, 3), (TILE_ROWS // 3 + 2, 3)])  # last: a class in two tiles
def test_angles_are_between_prototypes_of_different_classes(k, c):
    weight = prototypes(k, c)
    weight[1, 0] = weight[1, -1]  # coincident, but of one class
    rows = normalize(weight, dim=-1)
    cosines = torch.einsum("ixd,jyd->ijxy", rows, rows).amax((2, 3)).fill_diagonal_(-2.0)
    found = nearest_prototypes(weight)
    assert found.neighbor.tolist() == cosines.argmax(1).tolist()
    torch.testing.assert_close(found.angle, cosines.amax(1).acos())
    assert class_margin(weight).item() == pytest.approx(math.acos(cosines.max()))


def test_the_class_margin_pulls_the_closest_pair_apart():
    weight = prototypes(4, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(class_margin(weight), weight)
    assert (gradient != 0).any(-1).sum() == 2
    assert class_margin(weight + 0.01 * gradient) > class_margin(weight)


@pytest.mark.parametrize("normalized", [True, False])
def test_sample_margins_compare_the_best_prototypes(normalized):
    weight = prototypes(TILE_ROWS // 3 + 2, 3).requires_grad_()
    z = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, TILE_ROWS // 3, TILE_ROWS // 3 + 1, 3, 4, 5])
    rows, points = (normalize(x, dim=-1) if normalized else x for x in (weight, z))
    logits = torch.einsum("nd,kcd->nkc", points, rows).amax(2)
    own = torch.nn.functional.one_hot(labels, len(weight)).bool()
    expected = logits[own] - logits.masked_fill(own, -math.inf).amax(1)
    found = sample_margins(z, weight, labels, normalize=normalized)
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(value.sum(), weight)[0] for value in (found, expected)]
    torch.testing.assert_close(*grads)


def test_shapes_that_are_no_prototypes_raise():
    with pytest.raises(ValueError, match=r"each for at least 2 classes, got shape \(1, 3, 5\)"):
        class_margin(torch.randn(1, 3, 5))
    with pytest.raises(ValueError, match=r"one vector per row, got shape \(2, 2, 3, 5\)"):
        class_margin(torch.randn(2, 2, 3, 5))
