"""Class margins, sample margins, their ceilings: against plain formulas, at the ends, at any tile size."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from tammes.geometry.margins import (
    centroid_norm,
    class_margin,
    gamma_min,
    gamma_min_ceiling,
    gamma_per_class,
    hard_margin_loss,
    mean_sample_margin,
    nearest_prototypes,
    norm_ratio,
    sample_margin_ceiling,
    sample_margins,
)
from tammes.geometry.sphere import normalize

AXES = tensor([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, 0, 1], [0, 0, -1]])


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def rotation(d: int, seed: int = 1) -> torch.Tensor:
    return torch.linalg.qr(rand(d, d, seed=seed)).Q


def on_circle(angles: list[float], d: int = 9) -> torch.Tensor:
    """Unit vectors at these angles in one plane of d dimensions."""
    turn = tensor(angles, dtype=torch.float64)
    return torch.stack([turn.cos(), turn.sin()], 1) @ rotation(d)[:2]


def centered_axes(k: int, d: int) -> torch.Tensor:
    """A regular simplex of k unit vectors, each near to its axis where there is one for all."""
    centered = torch.eye(k, dtype=torch.float64) - 1 / k
    if k > d:
        centered = centered @ torch.linalg.svd(centered).Vh[:d].T
    return normalize(torch.nn.functional.pad(centered, (0, d - centered.shape[1])))


def dense_sample_margins(z, w, y, normalized=True):
    scores = normalize(z) @ normalize(w).T if normalized else z @ w.T
    own = scores[torch.arange(len(y)), y]
    scores[torch.arange(len(y)), y] = -math.inf
    return own - scores.amax(1)


class TestClassMargin:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_two_opposite_prototypes_are_pi_apart(self, dtype):
        w = rand(1, 7).to(dtype)
        assert class_margin(torch.cat([w, -3 * w])).item() == pytest.approx(math.pi, rel=1e-7)

    @pytest.mark.parametrize("small", [1e-3, 1e-5, 1e-6])
    def test_small_angles_between_float32_prototypes_are_exact(self, small):
        w = torch.cat([rand(11, 33), on_circle([0.0, small], d=33)]).float()
        u, v = (row / np.linalg.norm(row) for row in w[-2:].numpy().astype(np.longdouble))
        truth = float(2 * np.arcsin(np.linalg.norm(u - v) / 2))
        assert class_margin(w).item() == pytest.approx(truth, rel=1e-6)
        assert truth == pytest.approx(small, abs=2e-7)

    @pytest.mark.parametrize("rows", [2, 3, 64])
    def test_the_closest_pair_is_found_in_a_crowd_whose_cosines_round_to_one(self, rows, tile_of):
        tile_of(rows)
        crowd = on_circle([0.0, 3e-9, 1e-8, 1.5e-8, 1.7e-8, 1e-7])
        assert nearest_prototypes(crowd).neighbor.tolist() == [1, 0, 3, 4, 3, 4]
        assert class_margin(crowd).item() == pytest.approx(2e-9, rel=1e-5)

    def test_gradient_passes_through_the_closest_pair(self):
        w = rand(6, 4).requires_grad_()
        assert torch.autograd.gradcheck(class_margin, (w,))
        class_margin(w).backward()
        nearest = nearest_prototypes(w.detach())
        closest = int(nearest.angle.argmin())
        pair = {closest, int(nearest.neighbor[closest])}
        assert {i for i in range(6) if w.grad[i].abs().sum() > 0} == pair

    def test_coincident_prototypes_have_margin_zero_and_a_zero_gradient(self):
        w = tensor([[1.0, 2.0], [2.0, 4.0], [0.0, 1.0]], requires_grad=True)
        class_margin(w).backward()
        assert class_margin(w).item() == 0
        assert w.grad.abs().max() == 0

    def test_a_zero_prototype_is_orthogonal_to_every_other(self):
        w = tensor([[0.0, 0.0], [-1.0, 0.0], [1.0, 1e-3], [0.0, 0.0]], requires_grad=True)
        assert nearest_prototypes(w).angle.tolist() == pytest.approx([math.pi / 2] * 4)
        assert nearest_prototypes(w).neighbor.tolist() == [1, 0, 0, 0]
        blank = torch.zeros(3, 2, requires_grad=True)
        class_margin(blank).backward()
        assert blank.grad.abs().max() == 0

    def test_a_prototype_that_is_not_finite_makes_the_margin_nan_and_spoils_no_other_neighbor(self):
        w = on_circle([0.0, 1.0, 2.5, 2.6])
        w[2, 0] = math.nan
        assert class_margin(w).isnan()
        nearest = nearest_prototypes(w)
        assert nearest.neighbor[[0, 1, 3]].tolist() == [1, 0, 1]
        assert nearest.angle.isnan().tolist() == [False, False, True, False]

    def test_half_precision_prototypes_are_measured_in_full(self):
        w = rand(9, 5).bfloat16()
        assert class_margin(w).dtype == torch.float32
        assert class_margin(w).item() == pytest.approx(class_margin(w.double()).item(), rel=1e-6)

    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 10_000), st.integers(2, 12), st.integers(2, 6))
    def test_rotation_relabelling_and_lengths_change_nothing(self, seed, k, d):
        w = rand(k, d, seed=seed)
        order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
        moved = (w * torch.arange(1.0, k + 1)[:, None])[order] @ rotation(d, seed)
        assert class_margin(moved).item() == pytest.approx(class_margin(w).item(), abs=1e-12)
        # Ties (k = 2) apart, each class keeps its neighbor under its new number.
        before, after = nearest_prototypes(w), nearest_prototypes(moved)
        assert torch.equal(order[after.neighbor], before.neighbor[order])


class TestNearest:
    @pytest.mark.parametrize("rows", [1, 2, 7, 23, 64])
    def test_every_tile_size_agrees_with_the_dense_formula(self, rows, tile_of):
        tile_of(rows)
        w = rand(23, 5)
        cosine = normalize(w) @ normalize(w).T
        cosine.fill_diagonal_(-math.inf)
        nearest = nearest_prototypes(w)
        assert torch.equal(nearest.neighbor, cosine.argmax(1))
        assert torch.allclose(nearest.angle, cosine.amax(1).acos(), atol=1e-12)
        assert class_margin(w) == nearest.angle.min()

    @pytest.mark.parametrize("rows", [1, 2, 3, 64])
    def test_ties_go_to_the_lowest_index(self, rows, tile_of):
        tile_of(rows)
        assert nearest_prototypes(AXES).neighbor.tolist() == [1, 0, 1, 0, 0]
        simplex = centered_axes(7, 9) @ rotation(9)
        assert nearest_prototypes(simplex).neighbor.tolist() == [1, 0, 0, 0, 0, 0, 0]
        twins = on_circle([0.3, 2.0, 0.7, 2.0, 0.7, 0.7])
        assert nearest_prototypes(twins).neighbor.tolist() == [2, 3, 4, 1, 2, 2]


class TestSampleMargins:
    @pytest.mark.parametrize("normalized", [True, False])
    @pytest.mark.parametrize("rows", [1, 4, 13, 64])
    def test_every_block_size_agrees_with_the_dense_formula(self, rows, normalized, tile_of):
        tile_of(rows)
        z, w, y = rand(29, 5), rand(13, 5, seed=1), torch.arange(29) * 3 % 13
        ours = sample_margins(z, w, y, normalize=normalized)
        assert torch.allclose(ours, dense_sample_margins(z, w, y, normalized), atol=1e-12)

    @pytest.mark.parametrize("normalized", [True, False])
    def test_gradients(self, normalized, tile_of):
        tile_of(3)
        z, w, y = rand(5, 3).requires_grad_(), rand(4, 3, seed=1).requires_grad_(), tensor([0, 3, 1, 1, 2])
        assert torch.autograd.gradcheck(lambda z, w: sample_margins(z, w, y, normalize=normalized), (z, w))

    def test_the_lowest_of_tied_rivals_takes_the_gradient(self, tile_of):
        tile_of(2)
        w = AXES.clone().requires_grad_()
        sample_margins(tensor([[1.0, 0.0, 0.0]]), w, tensor([0])).sum().backward()
        assert w.grad.abs().sum(1).nonzero().flatten().tolist() == [1]

    def test_a_margin_is_zero_between_equal_prototypes(self):
        w = rand(3, 5)[[0, 1, 0]].float()
        margins = sample_margins(rand(4, 5, seed=2).float(), w, tensor([0, 2, 0, 2]))
        assert (margins <= 0).all()
        assert sample_margins(w[:1], w, tensor([2])).item() == 0

    @pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
    def test_labels_of_every_integer_type(self, dtype):
        z, w = rand(3, 5), rand(4, 5, seed=1)
        labels = tensor([3, 0, 1])
        assert torch.equal(gamma_per_class(z, w, labels.to(dtype)), gamma_per_class(z, w, labels))

    def test_autocast_and_half_precision_keep_float32(self):
        z, y = rand(11, 33).bfloat16(), torch.arange(11)
        w = (rand(1, 33, seed=1) + 1e-3 * rand(53, 33, seed=2)).float()  # bfloat16 cannot tell them apart
        with torch.autocast("cpu", dtype=torch.bfloat16):
            margins = sample_margins(z, w, y)
        assert margins.dtype == torch.float32
        assert torch.allclose(margins.double(), dense_sample_margins(z.double(), w.double(), y), atol=1e-6)

    def test_a_score_that_is_nan_makes_the_margin_nan(self, tile_of):
        tile_of(2)
        w = rand(5, 3)
        w[1] = math.nan
        assert sample_margins(rand(2, 3, seed=1), w, tensor([0, 4])).isnan().all()

    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 10_000), st.integers(2, 7), st.integers(2, 5))
    def test_rotation_relabelling_and_order_change_nothing(self, seed, k, d):
        z, w = rand(11, d, seed=seed), rand(k, d, seed=seed + 1)
        generator = torch.Generator().manual_seed(seed)
        y = torch.randint(k, (11,), generator=generator)
        classes, samples = (torch.randperm(m, generator=generator) for m in (k, 11))
        turn = rotation(d, seed)
        moved = sample_margins((z @ turn)[samples], (w @ turn)[classes], classes.argsort()[y][samples])
        assert torch.allclose(moved, sample_margins(z, w, y)[samples], atol=1e-12)


class TestPerClass:
    z = tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.8, 0.6]])
    w = tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    y = tensor([0, 0, 1, 1])  # margins 1, -0.2, 1, -0.2

    def test_gamma_per_class_is_the_least_of_each_class_and_infinite_without_samples(self):
        assert gamma_per_class(self.z, self.w, self.y).tolist() == pytest.approx([-0.2, -0.2, math.inf])
        assert gamma_min(self.z, self.w, self.y).item() == pytest.approx(-0.2)
        assert mean_sample_margin(self.z, self.w, self.y).item() == pytest.approx(0.4)

    @pytest.mark.parametrize(("gamma", "share"), [(-0.5, 0.0), (0.5, 0.5), (1.5, 1.0)])
    def test_hard_margin_loss_is_the_share_of_samples_below_gamma(self, gamma, share):
        loss = hard_margin_loss(self.z, self.w, self.y, gamma)
        assert loss.tolist() == pytest.approx([share, share, math.nan], nan_ok=True)

    def test_hard_margin_loss_is_zero_at_each_class_s_own_gamma(self):
        gamma = gamma_per_class(self.z, self.w, self.y)
        assert hard_margin_loss(self.z, self.w, self.y, gamma)[:2].tolist() == [0, 0]
        gamma[0] += 1e-6
        assert hard_margin_loss(self.z, self.w, self.y, gamma)[:2].tolist() == [0.5, 0]


class TestCeilings:
    @pytest.mark.parametrize(("k", "d"), [(2, 2), (3, 2), (10, 64), (100, 99)])
    def test_the_simplex_reaches_both(self, k, d):
        w = (
            centered_axes(k, d)
            if k <= d
            else centered_axes(k, k) @ torch.linalg.svd(centered_axes(k, k)).Vh[:d].T
        )
        mean = mean_sample_margin(w, w, torch.arange(k)).item()
        assert mean == pytest.approx(k / (k - 1))
        assert sample_margin_ceiling(k, d) == pytest.approx(mean)
        assert gamma_min_ceiling(k, d) == pytest.approx(gamma_min(w, w, torch.arange(k)).item())

    @pytest.mark.parametrize("k", [2, 3, 10])
    def test_orthogonal_features_reach_the_one_of_nonnegative_features(self, k):
        mean = mean_sample_margin(torch.eye(k, 11).double(), centered_axes(k, 11), torch.arange(k)).item()
        assert mean == pytest.approx(math.sqrt(k / (k - 1)))
        assert sample_margin_ceiling(k, 11, nonnegative=True) == pytest.approx(mean)

    def test_of_the_paper_s_ten_classes(self):
        assert sample_margin_ceiling(10, 512) == pytest.approx(1.1111, abs=1e-4)
        assert sample_margin_ceiling(10, 512, nonnegative=True) == pytest.approx(1.0541, abs=1e-4)

    @pytest.mark.parametrize(("k", "d"), [(3, 5), (7, 2), (9, 3), (30, 2), (60, 3)])
    @pytest.mark.parametrize("nonnegative", [False, True])
    def test_ascent_does_not_exceed_the_mean_s(self, k, d, nonnegative):
        w, z = rand(k, d).requires_grad_(), rand(k, d, seed=1).requires_grad_()
        optimizer = torch.optim.Adam([w, z], lr=0.05)
        means = []
        for _ in range(60):
            features = z.abs() if nonnegative else z
            mean = mean_sample_margin(features, w, torch.arange(k))
            optimizer.zero_grad()
            (-mean).backward()
            optimizer.step()
            means.append(mean.item())
        assert means[0] + 0.1 < max(means) <= sample_margin_ceiling(k, d, nonnegative=nonnegative) + 1e-12

    def test_beyond_d_plus_1_classes_the_mean_may_exceed_what_gamma_min_cannot(self):
        third = 2 * math.pi / 3
        w = on_circle([0.0, third, *[2 * third] * 5])
        mean = mean_sample_margin(w, w, torch.arange(7)).item()
        assert mean == pytest.approx(3 / 7)
        assert gamma_min_ceiling(7, 2) == pytest.approx(1 - math.cos(2 * math.pi / 7))
        assert gamma_min_ceiling(7, 2) < mean < sample_margin_ceiling(7, 2)


def test_centroid_norm_is_that_of_the_unit_prototypes():
    assert centroid_norm(tensor([[5.0, 0.0], [0.0, 0.1]])).item() == pytest.approx(math.sqrt(0.5))
    assert centroid_norm(centered_axes(5, 7)).item() == pytest.approx(0, abs=1e-15)


def test_norm_ratio_is_largest_over_smallest():
    assert norm_ratio(tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 2.0]])).item() == 2.5
    assert norm_ratio(tensor([[3.0, 4.0], [0.0, 0.0]])).item() == math.inf


@pytest.mark.usefixtures("unchecked")
class TestErrors:
    @pytest.mark.parametrize(
        ("weight", "error", "words"),
        [
            (torch.ones(1, 3), ValueError, r"at least 2 classes, got shape \(1, 3\)"),
            (torch.ones(3), ValueError, r"weight must be a matrix.*got shape \(3,\)"),
            (torch.ones(3, 0), ValueError, r"weight must be a matrix.*got shape \(3, 0\)"),
            (torch.ones(3, 3, dtype=torch.long), TypeError, r"floating point, got torch.int64.*\.float\(\)"),
        ],
    )
    @pytest.mark.parametrize("function", [class_margin, nearest_prototypes, centroid_norm, norm_ratio])
    def test_prototypes(self, function, weight, error, words):
        with pytest.raises(error, match=words):
            function(weight)

    @pytest.mark.parametrize(
        ("z", "y", "error", "words"),
        [
            (torch.ones(2, 4), [0, 1], ValueError, r"3 columns.*got shape \(2, 4\)"),
            (torch.ones(0, 3), [], ValueError, r"at least one row, got shape \(0, 3\)"),
            (torch.ones(2, 3), [0, 4], ValueError, r"\[0, 4\), got 4 in row 1"),
            (torch.ones(2, 3), [-1, 0], ValueError, r"\[0, 4\), got -1 in row 0"),
            (torch.ones(2, 3), [0, 1, 2], ValueError, r"labels must have shape \(2,\).*got \(3,\)"),
            (torch.ones(2, 3), [[0], [1]], ValueError, r"labels must have shape \(2,\).*got \(2, 1\)"),
            (torch.ones(2, 3), [0.0, 1.0], TypeError, r"integers, got torch.float32.*\.long\(\)"),
            (torch.ones(2, 3), [True, False], TypeError, r"integers, got torch.bool"),
        ],
    )
    @pytest.mark.parametrize("function", [sample_margins, gamma_per_class, gamma_min, mean_sample_margin])
    def test_samples(self, function, z, y, error, words):
        labels = tensor(y) if y else torch.zeros(0, dtype=torch.long)
        with pytest.raises(error, match=words):
            function(z, torch.ones(4, 3), labels)

    def test_a_gamma_for_the_wrong_number_of_classes(self):
        with pytest.raises(ValueError, match=r"one number or 4.*got shape \(3,\)"):
            hard_margin_loss(torch.ones(2, 3), torch.ones(4, 3), tensor([0, 1]), torch.zeros(3))

    @pytest.mark.parametrize(
        ("k", "d", "words"), [(1, 3, "k must be at least 2"), (3, 0, "d must be at least 1")]
    )
    def test_ceilings(self, k, d, words):
        for ceiling in (sample_margin_ceiling, gamma_min_ceiling):
            with pytest.raises(ValueError, match=words):
                ceiling(k, d)
