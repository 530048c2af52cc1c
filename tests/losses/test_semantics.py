"""Semantics of weights, ignored rows, reductions and the three kinds of labels."""

import pytest
import torch
import torch.nn.functional as F

from tammes.losses import LMSoftmax, MixedLabels, NormFace, SampleMargin, ZeroCentroid, parse
from tammes.losses.functional import lm_softmax
from tammes.losses.scores import Scores

CLASS_WEIGHT = torch.tensor([1.0, 2, 0, 3, 0.5, 1, 4], dtype=torch.float64)
SAMPLE_WEIGHT = torch.tensor([0.5, 1, 2, 0, 3, 1, 1, 0.25, 1], dtype=torch.float64)
PER_SAMPLE = parse("CosFace(s=8, m=0.2) + 0.5*R_sm - CE + LMSoftmax(s=4)")


def rows(objective, z, w, y, **options):
    torch.default_generator.manual_seed(0)  # of random margins
    return objective(z, w, y, reduction="none", **options)


def test_the_mean_is_weighted_by_class_and_sample_over_the_kept_rows(way, batch, loss_by):
    z, w, y = batch
    y[5] = -100
    weight = CLASS_WEIGHT[y.clamp_min(0)] * SAMPLE_WEIGHT * (y != -100)
    plain = rows(PER_SAMPLE, z, w, y.clamp_min(0))
    options = {"class_weight": CLASS_WEIGHT, "sample_weight": SAMPLE_WEIGHT}
    value = loss_by(way, PER_SAMPLE, z, w, y, **options)
    torch.testing.assert_close(value, (weight * plain).sum() / weight.sum())
    torch.testing.assert_close(loss_by(way, PER_SAMPLE, z, w, y, reduction="none", **options), weight * plain)


def test_ignored_rows_do_not_pull(way, batch, loss_by):
    z, w, y = batch
    y[::2] = -100
    of_z, of_w = torch.autograd.grad(loss_by(way, PER_SAMPLE, z, w, y), (z, w))
    assert of_z[::2].eq(0).all()
    assert of_z[1::2].ne(0).all()
    without = torch.autograd.grad(loss_by(way, PER_SAMPLE, z[1::2], w, y[1::2]), (z, w))
    torch.testing.assert_close((of_z, of_w), without)


def test_when_every_row_is_ignored_the_loss_is_0_and_so_are_the_gradients(sample_term, ways, batch, loss_by):
    z, w, y = batch
    for way in ways:
        loss = loss_by(way, sample_term, z, w, torch.full_like(y, -100))
        loss.sum().backward()
        assert loss.eq(0).all()
        assert z.grad.eq(0).all()
        assert w.grad.eq(0).all()


def test_zero_weights_throughout_give_a_zero_loss(batch):
    z, w, y = batch
    for objective in (NormFace(scale=8), LMSoftmax(scale=8, reduction="lse")):
        loss = objective(z, w, y, sample_weight=torch.zeros(9))
        loss.backward()
        assert loss == 0
        assert z.grad.eq(0).all()
        assert w.grad.eq(0).all()


def test_prototype_terms_add_to_every_row(way, batch, loss_by):
    z, w, y = batch
    y[2] = -100
    both = loss_by(way, SampleMargin() + 100 * ZeroCentroid(), z, w, y, reduction="none")
    sample = loss_by(way, SampleMargin(), z, w, y, reduction="none")
    centroid = F.normalize(w, dim=1).mean(0).square().sum()
    torch.testing.assert_close(both, sample + 100 * centroid)
    torch.testing.assert_close(
        loss_by(way, 3 * ZeroCentroid(), z, w, y, reduction="none"), (3 * centroid).expand(9)
    )


def test_prototype_terms_are_not_weighted(batch):
    z, w, y = batch
    plain = ZeroCentroid()(z, w, y)
    assert ZeroCentroid()(z, w, y, class_weight=CLASS_WEIGHT, sample_weight=SAMPLE_WEIGHT) == plain


def test_lse_is_one_log_over_all_samples_and_classes(way, batch, loss_by):
    """The left side of eq. 3.6: (1/s) log sum_i sum_{j != y_i} exp(s (c_ij - c_iy))."""
    z, w, y = batch
    cosines = F.normalize(z, dim=1) @ F.normalize(w, dim=1).T
    gaps = cosines - cosines.gather(1, y[:, None])
    truth = (3 * gaps)[F.one_hot(y, 7) == 0].logsumexp(0) / 3
    torch.testing.assert_close(loss_by(way, LMSoftmax(scale=3, reduction="lse"), z, w, y), truth)


def test_lse_weighs_the_exponentials(batch):
    z, w, y = batch
    y[5] = -100
    weight = CLASS_WEIGHT[y.clamp_min(0)] * SAMPLE_WEIGHT * (y != -100)
    cosines = F.normalize(z, dim=1) @ F.normalize(w, dim=1).T
    values = lm_softmax(Scores.of(cosines, y.clamp_min(0), scale=3.0))
    truth = (weight * (3 * values).exp()).sum().log() / 3
    objective = LMSoftmax(scale=3, reduction="lse")
    value = objective(z, w, y, class_weight=CLASS_WEIGHT, sample_weight=SAMPLE_WEIGHT)
    torch.testing.assert_close(value, truth)


@pytest.mark.parametrize(
    "text", ["LMSoftmax(s=4, reduction='lse') + LMSoftmax(s=5, reduction='none')", "LSE"]
)
def test_lse_has_no_value_per_row(batch, text):
    objective = parse(text.replace("LSE", "CE + LMSoftmax(s=4, reduction='lse')"))
    with pytest.raises(ValueError, match=r'one value for the whole batch .* under reduction="none"'):
        objective(*batch, reduction="none")


def test_a_term_that_is_not_reduced_leaves_the_others_unreduced(batch):
    objective = LMSoftmax(scale=4, reduction="none") + SampleMargin()
    reduced = LMSoftmax(scale=4) + SampleMargin()
    torch.testing.assert_close(objective(*batch), reduced(*batch, reduction="none"))


def test_one_hot_soft_targets_are_hard_labels(soft_objective, batch):
    z, w, y = batch
    values = []
    for labels in (F.one_hot(y, 7).double(), y):
        torch.default_generator.manual_seed(0)  # of random margins
        values.append(soft_objective(z, w, labels, sample_weight=SAMPLE_WEIGHT))
    torch.testing.assert_close(*values)


def test_one_hot_soft_targets_weigh_rows_as_hard_labels_do(soft_row_term, batch):
    """Only the divisor of the mean differs, as in torch."""
    z, w, y = batch
    options = {"class_weight": CLASS_WEIGHT, "sample_weight": SAMPLE_WEIGHT}
    soft = rows(soft_row_term, z, w, F.one_hot(y, 7).double(), **options)
    torch.testing.assert_close(soft, rows(soft_row_term, z, w, y, **options))


def test_soft_targets_are_the_sum_over_labels_each_with_its_own_margin(soft_row_term, batch, label_kinds):
    z, w, y = batch
    q = label_kinds["soft"](y)
    as_each = torch.stack([rows(soft_row_term, z, w, torch.full_like(y, label)) for label in range(7)], 1)
    torch.testing.assert_close(rows(soft_row_term, z, w, q), (q * as_each).sum(1))


def test_mixed_labels_are_the_two_term_formula(row_term, ways, batch, loss_by):
    if getattr(row_term, "momentum", 0) and not row_term.need.feature_norms:
        pytest.skip("its running statistic is one of the labels")
    z, w, a = batch
    b = a.roll(2)
    b[0] = a[0]
    lam = torch.linspace(0, 1, 9, dtype=torch.float64)
    truth = lam * rows(row_term, z, w, a) + (1 - lam) * rows(row_term, z, w, b)
    for way in ways:
        value = loss_by(way, row_term, z, w, MixedLabels(a, b, lam), reduction="none")
        torch.testing.assert_close(value, truth)


def test_a_number_for_lam_keeps_its_digits(batch):
    z, w, a = batch
    b = a.roll(2)
    value = NormFace(scale=8)(z, w, MixedLabels(a, b, 0.3))
    truth = 0.3 * NormFace(scale=8)(z, w, a) + 0.7 * NormFace(scale=8)(z, w, b)
    torch.testing.assert_close(value, truth, rtol=1e-14, atol=0)


def test_mixed_labels_weigh_each_label_by_its_class(batch):
    z, w, a = batch
    b, lam = a.roll(2), 0.3
    weight = 0.3 * CLASS_WEIGHT[a], 0.7 * CLASS_WEIGHT[b]
    value = NormFace(scale=8)(z, w, MixedLabels(a, b, lam), class_weight=CLASS_WEIGHT)
    total = weight[0] * rows(NormFace(scale=8), z, w, a) + weight[1] * rows(NormFace(scale=8), z, w, b)
    torch.testing.assert_close(value, total.mean())


def test_a_mixed_row_is_ignored_when_either_label_is(batch):
    z, w, a = batch
    b = a.roll(2)
    kept = torch.ones(9, dtype=torch.bool)
    kept[[1, 6]] = False
    mixed = MixedLabels(
        torch.where(torch.arange(9) == 1, -100, a), torch.where(torch.arange(9) == 6, -100, b), 0.4
    )
    torch.testing.assert_close(
        PER_SAMPLE(z, w, mixed), PER_SAMPLE(z[kept], w, MixedLabels(a[kept], b[kept], 0.4))
    )


def test_two_classes_both_of_them_labels_have_no_rival(objective_of_two, ways, loss_by):
    """k = 2 and a row of both labels: nothing is left once the targets are masked."""
    z = torch.tensor([[1.0, 2.0], [0.5, -1.0], [1.0, 0.0]], requires_grad=True)
    w = torch.tensor([[1.0, 1.0], [-1.0, 0.5]], requires_grad=True)
    a, b, lam = torch.tensor([0, 1, 0]), torch.tensor([1, 0, 0]), torch.tensor([0.3, 1.0, 0.5])
    for way in ways:
        loss = loss_by(way, objective_of_two, z, w, MixedLabels(a, b, lam))
        loss.mean().backward()
        assert loss.isfinite().all()
        assert z.grad is None or z.grad.isfinite().all()
        assert w.grad is None or w.grad.isfinite().all()


def test_a_tie_goes_to_the_lowest_class(way, loss_by):
    """Prototypes 1 and 3 coincide: only the first feels the pull of R_sm."""
    w = torch.eye(5, dtype=torch.float64)[[0, 1, 2, 1, 3, 4]].requires_grad_()
    z = torch.tensor([[0.3, 0.9, 0.1, 0, 0], [0.1, 0.8, 0.5, 0, 0]], dtype=torch.float64)
    for labels in (torch.tensor([0, 2]), F.one_hot(torch.tensor([0, 2]), 6).double()):
        (of_w,) = torch.autograd.grad(loss_by(way, SampleMargin(), z, w, labels), w)
        assert of_w[1].norm() > 0
        assert of_w[3:].eq(0).all()


def test_a_tie_of_a_rival_with_another_label_goes_to_the_lowest_class(way, loss_by):
    """Prototypes 1 and 3 coincide and 3 is the second label: as a sample of class 0, class 1 is pushed."""
    w = torch.eye(5, dtype=torch.float64)[[0, 1, 2, 1, 3, 4]].requires_grad_()
    z = torch.tensor([[0.3, 0.9, 0.1, 0, 0]], dtype=torch.float64)
    for second in (1, 3):
        labels = MixedLabels(torch.tensor([0]), torch.tensor([second]), 1.0)
        (of_w,) = torch.autograd.grad(loss_by(way, SampleMargin(), z, w, labels), w)
        assert of_w[1].norm() > 0
        assert of_w[3].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_any_integer_type(dtype, new_batch):
    z, w, _ = new_batch(k=300)
    y = torch.tensor([100, 0, 126, 44, 45, 127, 1, 2, 3])
    assert NormFace(scale=8)(z, w, y.to(dtype)) == NormFace(scale=8)(z, w, y)
    if dtype == torch.uint8:
        y[0] = 156  # what -100 is in uint8
        assert NormFace(scale=8)(z, w, y.to(dtype)) == NormFace(scale=8)(z, w, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_soft_targets_in_half_precision_sum_to_1_to_its_rounding(dtype, batch):
    z, w, _ = batch
    q = torch.full((9, 7), 0.1 / 6)
    q[:, 2] = 0.9
    assert NormFace(scale=8)(z, w, q.to(dtype)).isfinite()


def test_class_counts_are_for_ldam(batch):
    counts = (500, 100, 50, 20, 10, 5, 2)
    with_counts = parse("LDAM(s=8, counts=[500, 100, 50, 20, 10, 5, 2])")(*batch)
    assert parse("LDAM(s=8)")(*batch, class_counts=counts) == with_counts
    margins = tuple(0.5 * (n / 2) ** -0.25 for n in counts)
    by_hand = parse(f"CosFace(s=8, m={list(margins)})")(*batch)
    torch.testing.assert_close(with_counts, by_hand)
    by_factor = parse(f"CosFace(s=8, m={[0.9 * n**-0.25 for n in counts]})")(*batch)
    torch.testing.assert_close(parse("LDAM(s=8, C=0.9)")(*batch, class_counts=counts), by_factor)
