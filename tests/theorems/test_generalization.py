"""Eq. 2.7: its terms by hand, and that a frozen backbone's complexity bounds what random signs can fit."""

import math

import pytest
import torch

from tammes.theory import margin_bound


def test_terms_by_hand():
    """Class 0: one of two samples below 0.5; class 1: none of four. n_j = 2 and 4, k = 2, n = 6."""
    margins = torch.tensor([0.9, 0.2, 0.7, 0.8, 0.5, 0.6])
    labels = torch.tensor([0, 0, 1, 1, 1, 1])
    bound = margin_bound(margins, labels, 0.5)
    assert bound.margin_loss == pytest.approx((1 / 2 + 0) / 2)
    assert bound.complexity == pytest.approx((8 * 2 / math.sqrt(2) + 8 * 2 / 2) / 2)
    spread = math.log(2) + math.log(6)  # log2(2 / 0.5) = 2
    assert bound.deviation == pytest.approx((math.sqrt(spread / 2) + math.sqrt(spread / 4)) / 2)
    assert bound.total == pytest.approx(bound.margin_loss + bound.complexity + bound.deviation)


def test_classes_weigh_the_same_however_many_samples_they_have():
    margins = torch.cat([torch.ones(98), torch.zeros(2)])
    labels = torch.cat([torch.zeros(98, dtype=torch.long), torch.ones(2, dtype=torch.long)])
    assert margin_bound(margins, labels, 0.5).margin_loss == pytest.approx(0.5)


def test_random_signs_fit_no_better_than_the_complexity():
    """sup over unit prototypes of mean sigma_i (w_0 z_i - max_j w_j z_i) is at most k / sqrt(n).

    With all other prototypes equal to -w_0 the supremum is at least twice the length of the mean of
    sigma_i z_i; the bound must lie above that.
    """
    generator = torch.Generator().manual_seed(0)
    n, k = 50, 3
    z = torch.nn.functional.normalize(torch.randn(n, 8, dtype=torch.float64, generator=generator))
    signs = torch.randint(2, (1000, n), generator=generator).double() * 2 - 1
    fitted = 2 * (signs @ z / n).norm(dim=1).mean()
    labels = torch.arange(k).repeat_interleave(n)
    complexity = margin_bound(torch.ones(n * k), labels, 1.0).complexity / 4
    assert fitted <= complexity == pytest.approx(k / math.sqrt(n))


@pytest.mark.parametrize("gamma", [0.0, -1.0, 1.5, math.nan])
def test_margins_outside_the_range_of_cosines_are_refused(gamma):
    with pytest.raises(ValueError, match="gamma must be"):
        margin_bound(torch.ones(2), torch.tensor([0, 1]), gamma)
