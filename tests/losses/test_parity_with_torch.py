"""CrossEntropy and its relatives against torch's own, in value and gradient."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tammes.losses import (
    ArcFace,
    CrossEntropy,
    Focal,
    LabelAware,
    MixedLabels,
    NormFace,
    Scores,
    label_aware_smoothing,
    parse,
)


def assert_parity(ours, theirs, *leaves: Tensor) -> None:
    """Two losses agree in value and in every gradient."""
    torch.testing.assert_close(ours, theirs)
    gradients = (torch.autograd.grad(loss.sum(), leaves, retain_graph=True) for loss in (ours, theirs))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)


SMOOTHING = [0.0, 0.3]
CLASS_WEIGHT = torch.tensor([1.0, 2, 0, 3, 0.5, 1, 4], dtype=torch.float64)


def in_three_reductions(ours, theirs, *leaves: Tensor) -> None:
    """`ours` and `theirs` take reductions; a sum is that of the rows."""
    assert_parity(ours("mean"), theirs("mean"), *leaves)
    assert_parity(ours("none"), theirs("none"), *leaves)
    assert_parity(ours("none").sum(), theirs("sum"), *leaves)


@pytest.mark.parametrize("label_smoothing", SMOOTHING)
@pytest.mark.parametrize("class_weight", [None, CLASS_WEIGHT], ids=["plain", "weighted"])
def test_class_indices_with_weights_smoothing_and_ignored_rows(
    way, batch, loss_by, label_smoothing, class_weight
):
    z, w, y = batch
    y[4] = -100
    objective = CrossEntropy(label_smoothing=label_smoothing)
    in_three_reductions(
        lambda how: loss_by(way, objective, z, w, y, class_weight=class_weight, reduction=how),
        lambda how: F.cross_entropy(z @ w.T, y, class_weight, reduction=how, label_smoothing=label_smoothing),
        z,
        w,
    )


@pytest.mark.parametrize("label_smoothing", SMOOTHING)
@pytest.mark.parametrize("class_weight", [None, CLASS_WEIGHT], ids=["plain", "weighted"])
def test_probabilities_with_weights_and_smoothing(batch, label_kinds, label_smoothing, class_weight):
    z, w, y = batch
    q = label_kinds["soft"](y).detach()
    objective = CrossEntropy(label_smoothing=label_smoothing)
    in_three_reductions(
        lambda how: objective(z, w, q, class_weight=class_weight, reduction=how),
        lambda how: F.cross_entropy(z @ w.T, q, class_weight, reduction=how, label_smoothing=label_smoothing),
        z,
        w,
    )


@pytest.mark.parametrize("label_smoothing", SMOOTHING)
@pytest.mark.parametrize("class_weight", [None, CLASS_WEIGHT], ids=["plain", "weighted"])
def test_mixed_labels_are_torchs_probabilities_of_two_classes(
    way, batch, loss_by, label_smoothing, class_weight
):
    z, w, y = batch
    other, lam = y.roll(1), torch.linspace(0, 1, len(y), dtype=torch.float64)
    other[2] = y[2]
    q = lam[:, None] * F.one_hot(y, 7) + (1 - lam)[:, None] * F.one_hot(other, 7)
    mixed, objective = MixedLabels(y, other, lam), CrossEntropy(label_smoothing=label_smoothing)
    in_three_reductions(
        lambda how: loss_by(way, objective, z, w, mixed, class_weight=class_weight, reduction=how),
        lambda how: F.cross_entropy(z @ w.T, q, class_weight, reduction=how, label_smoothing=label_smoothing),
        z,
        w,
    )


@pytest.mark.parametrize(
    "text", ["CE(label_smoothing=0.3)", "CosFace(s=8, m=0.2, label_smoothing=0.3)", "R_sm"]
)
def test_mixed_rows_without_a_torch_counterpart_are_left_out_of_sum_and_divisor(way, batch, loss_by, text):
    """torch has no ignore_index for probabilities, no margins per label and no sample weights."""
    z, w, y = batch
    other, lam = y.roll(1), torch.linspace(0, 1, len(y), dtype=torch.float64)
    options = {"class_weight": CLASS_WEIGHT}
    kept = torch.arange(len(y)) != 4
    ignoring = MixedLabels(torch.where(kept, y, -100), other, lam)
    some = MixedLabels(y[kept], other[kept], lam[kept])
    assert_parity(
        loss_by(way, parse(text), z, w, ignoring, **options),
        loss_by(way, parse(text), z[kept], w, some, **options),
        z,
        w,
    )
    rows = loss_by(way, parse(text), z, w, ignoring, reduction="none", **options)
    weight = torch.rand(len(y), dtype=torch.float64)
    mean = loss_by(way, parse(text), z, w, ignoring, sample_weight=weight, **options)
    torch.testing.assert_close(mean, (weight * rows).sum() / weight[kept].sum())


def with_margin(term, cosines, y):
    """Logits as torch would be given them: the true class carries the margin."""
    raised = F.one_hot(y, 7).bool()
    moved = torch.cos(torch.acos(cosines) + 0.3) if isinstance(term, ArcFace) else cosines - 0.2
    return term.scale * torch.where(raised, moved, cosines)


@pytest.mark.parametrize(
    "text",
    [
        "CosFace(s=8, m=0.2, label_smoothing=0.3)",
        "ArcFace(s=8, m=0.3, label_smoothing=0.3, beyond_pi='plain')",
    ],
)
def test_margin_losses_smooth_and_weigh_as_torch_does_over_logits_that_carry_the_margin(
    way, batch, loss_by, text
):
    z, w, y = batch
    term = parse(text)
    logits = with_margin(term, F.normalize(z, dim=1) @ F.normalize(w, dim=1).T, y)
    y[4] = -100
    in_three_reductions(
        lambda how: loss_by(way, term, z, w, y, class_weight=CLASS_WEIGHT, reduction=how),
        lambda how: F.cross_entropy(logits, y, CLASS_WEIGHT, reduction=how, label_smoothing=0.3),
        z,
        w,
    )


def test_label_aware_smoothing_weighs_the_distribution_that_it_makes_of_a_label(way, batch, loss_by):
    z, w, y = batch
    counts = (500.0, 100.0, 50.0, 20.0, 10.0, 5.0, 2.0)
    e = torch.tensor(label_aware_smoothing(counts), dtype=torch.float64)[y][:, None]
    hot = F.one_hot(y, 7)
    q = (1 - e) * hot + e / 6 * (1 - hot)
    rows = F.cross_entropy(z @ w.T, q, CLASS_WEIGHT, reduction="none")
    ours = loss_by(way, LabelAware(counts=counts), z, w, y, class_weight=CLASS_WEIGHT, reduction="none")
    assert_parity(ours, rows, z, w)
    mean = loss_by(way, LabelAware(counts=counts), z, w, y, class_weight=CLASS_WEIGHT)
    assert_parity(mean, rows.sum() / CLASS_WEIGHT[y].sum(), z, w)


def test_focal_weighs_the_smoothed_factor(way, batch, loss_by):
    z, w, y = batch
    p = (z @ w.T).softmax(1).gather(1, y[:, None]).squeeze(1)
    smoothed = F.cross_entropy(z @ w.T, y, CLASS_WEIGHT, reduction="none", label_smoothing=0.3)
    ours = loss_by(
        way, Focal(gamma=2, label_smoothing=0.3), z, w, y, class_weight=CLASS_WEIGHT, reduction="none"
    )
    assert_parity(ours, (1 - p) ** 2 * smoothed, z, w)


def test_gradients_of_smoothed_probabilities_agree_along_distributions(batch, label_kinds):
    """torch's and ours differ by a constant in each row of q, which no softmax sees."""
    z, w, _ = batch
    v = torch.randn(9, 7, dtype=torch.float64).requires_grad_()
    q, options = v.softmax(1), {"label_smoothing": 0.3}
    assert_parity(
        CrossEntropy(**options)(z, w, q, class_weight=CLASS_WEIGHT),
        F.cross_entropy(z @ w.T, q, CLASS_WEIGHT, **options),
        v,
        z,
    )


def test_labels_of_weight_zero_alone_give_a_zero_loss(batch):
    z, w, y = batch
    for smoothing in SMOOTHING:
        loss = CrossEntropy(label_smoothing=smoothing)(z, w, torch.full_like(y, 2), class_weight=CLASS_WEIGHT)
        (of_z,) = torch.autograd.grad(loss, z)
        assert loss == 0
        assert of_z.eq(0).all()


def test_the_figures_of_a_hand_made_case():
    """k = 3, weights 1, 2, 10; written out class by class."""
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]], dtype=torch.float64)
    weight, y = torch.tensor([1.0, 2.0, 10.0], dtype=torch.float64), torch.tensor([0, 1])
    by_hand = []
    for row, label in zip(logits.log_softmax(1), y.tolist(), strict=True):
        by_hand.append(-0.8 * weight[label] * row[label] - 0.2 / 3 * (weight * row).sum())
    value = CrossEntropy(label_smoothing=0.2)(logits, torch.eye(3).double(), y, class_weight=weight)
    torch.testing.assert_close(value, sum(by_hand) / 3)


def test_another_ignore_index(batch):
    z, w, y = batch
    y = y.abs() % len(w)  # all are classes, and one of them is ignored
    y[:2] = 3
    assert_parity(CrossEntropy()(z, w, y, ignore_index=3), F.cross_entropy(z @ w.T, y, ignore_index=3), z, w)


def test_normalized_cross_entropy_is_normface_and_torchs_of_scaled_cosines(batch):
    z, w, y = batch
    theirs = F.cross_entropy(9 * F.normalize(z, dim=1) @ F.normalize(w, dim=1).T, y)
    assert_parity(CrossEntropy(normalize=True, scale=9)(z, w, y), theirs, z, w)
    assert_parity(NormFace(scale=9)(z, w, y), theirs, z, w)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_is_cross_entropy_times_a_power_of_the_chance_to_be_wrong(batch, gamma):
    z, w, y = batch
    p = (z @ w.T).softmax(1).gather(1, y[:, None]).squeeze(1)
    assert_parity(Focal(gamma=gamma)(z, w, y, reduction="none"), -((1 - p) ** gamma) * p.log(), z, w)


def test_rest_is_masked_not_subtracted(loss_by, way):
    """float32 logits 20, 0, -20: log(exp(lse) - exp(20)) would be -inf, the truth is 2e-9."""
    logits = torch.tensor([[20.0, 0.0, -20.0]])
    truth = torch.logsumexp(logits.double()[:, 1:], 1)
    torch.testing.assert_close(
        Scores.of(logits, torch.tensor([0]), scale=1.0).rest.double(), truth, atol=1e-6, rtol=0
    )
    z, w = torch.eye(1, 3) * 20, torch.tensor([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0]])
    value = loss_by(way, parse("CE"), z, w, torch.tensor([0]))
    assert value.item() == pytest.approx(torch.log1p(torch.exp(truth - 20)).item(), rel=1e-5)
    soft = parse("LMSoftmax(s=20)")(z, w, torch.tensor([[1.0, 0.0, 0.0]]))
    assert soft.item() == pytest.approx(-1.0, abs=1e-6)
