"""CrossEntropy and its relatives against torch's own, in value and gradient."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tammes.losses import CrossEntropy, Focal, MixedLabels, NormFace, Scores, parse


def assert_parity(ours, theirs, *leaves: Tensor) -> None:
    """Two losses agree in value and in every gradient."""
    torch.testing.assert_close(ours, theirs)
    gradients = (torch.autograd.grad(loss.sum(), leaves, retain_graph=True) for loss in (ours, theirs))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_with_weights_smoothing_and_ignored_rows(batch, label_smoothing, reduction, weighted):
    z, w, y = batch
    y[4] = -100
    class_weight = torch.linspace(0, 3, 7, dtype=torch.float64) if weighted else None
    if weighted and label_smoothing:
        # torch weighs the smoothed part by each class it falls on; here a row has one weight, its label's.
        theirs = smoothed_with_label_weights(z @ w.T, y, label_smoothing, class_weight, reduction)
    else:
        theirs = F.cross_entropy(
            z @ w.T, y, class_weight, reduction=reduction, label_smoothing=label_smoothing
        )
    objective = CrossEntropy(label_smoothing=label_smoothing)
    assert_parity(objective(z, w, y, class_weight=class_weight, reduction=reduction), theirs, z, w)


def smoothed_with_label_weights(logits, y, label_smoothing, class_weight, reduction):
    rows = F.cross_entropy(logits, y, reduction="none", label_smoothing=label_smoothing)
    weight = torch.where(y == -100, 0.0, class_weight[y.clamp_min(0)])
    return weight * rows if reduction == "none" else (weight * rows).sum() / weight.sum()


def test_another_ignore_index(batch):
    z, w, y = batch
    assert_parity(CrossEntropy()(z, w, y, ignore_index=3), F.cross_entropy(z @ w.T, y, ignore_index=3), z, w)


def test_soft_targets_are_torchs_probabilities(batch, label_kinds):
    z, w, y = batch
    q = label_kinds["soft"](y)
    assert_parity(CrossEntropy()(z, w, q), F.cross_entropy(z @ w.T, q), z, w)


def test_mixed_labels_are_torchs_probabilities_of_two_classes(batch):
    z, w, y = batch
    other, lam = y.roll(1), torch.linspace(0, 1, len(y), dtype=torch.float64)
    q = lam[:, None] * F.one_hot(y, 7) + (1 - lam)[:, None] * F.one_hot(other, 7)
    assert_parity(CrossEntropy()(z, w, MixedLabels(y, other, lam)), F.cross_entropy(z @ w.T, q), z, w)


def test_normalised_cross_entropy_is_normface_and_torchs_of_scaled_cosines(batch):
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
