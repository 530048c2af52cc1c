import pytest
import torch

from tammes import parse
from tammes.heads import RowSGD
from tammes.heads.sharded import ShardedPrototypeHead
from tammes.losses import ZeroCentroid

D, SIZES = 5, [4, 0, 5]
OBJECTIVES = [
    "CE(label_smoothing=0.1) + LSoftmax(m=2) + R_sm",
    'CosFace(s=8, m=0.2, label_smoothing=0.1) + R_sm(form="mean") + 3*R_w',
    'LMSoftmax(s=8, reduction="lse") + MHE + R_w(normalize=False)',
]
pytestmark = pytest.mark.filterwarnings("ignore:.*classes:UserWarning")


def batch(k, seed=0):
    torch.manual_seed(seed)
    labels = torch.randint(k, (sum(SIZES),))
    labels[2] = -100
    return torch.randn(sum(SIZES), D, dtype=torch.float64), labels


def local_batch(rank, k, seed=0):
    return (part.split(SIZES)[rank] for part in batch(k, seed))


def class_weights(k):
    return torch.linspace(0, 2, k, dtype=torch.float64)


def head_of(k, text):
    torch.manual_seed(3)
    return ShardedPrototypeHead(
        D, k, parse(text), sample_rate=0.3, class_weight=class_weights(k), dtype=torch.float64
    )


def one_step(rank, k, text):
    head = head_of(k, text)
    z, labels = local_batch(rank, k)
    z = z.requires_grad_()
    loss = head(z, labels)
    loss.backward()
    grad = head.weight.grad.to_sparse(1).coalesce()  # that of an empty slice is dense
    return {
        "loss": loss.item(),
        "weight": head.weight.detach(),
        "classes": grad.indices()[0] + head.class_range[0],
        "of_rows": grad.values(),
        "of_z": z.grad,
    }


def every_step(rank, cases):
    return [one_step(rank, k, text) for k, text in cases]


def over_the_sample(objective, weight, classes, z, labels):
    """Loss, gradients of z and of the sampled rows: R_w of all classes, other terms of the sample."""
    rows, z = weight[classes].requires_grad_(), z.clone().requires_grad_()
    places = torch.full((len(weight),), -1).scatter(0, classes, torch.arange(len(classes)))
    moved = torch.where(labels == -100, -100, places[labels.clamp(min=0)])
    loss = torch.zeros((), dtype=torch.float64)
    for coefficient, term in objective.weighted_terms:
        if isinstance(term, ZeroCentroid):
            loss = loss + coefficient * term(z, weight.index_copy(0, classes, rows), labels)
        else:
            weights = class_weights(len(weight))[classes]
            loss = loss + coefficient * term(z, rows, moved, class_weight=weights)
    return loss.item(), *torch.autograd.grad(loss, (z, rows))


def test_loss_and_gradients_are_those_of_the_classes_that_all_ranks_sampled(ranks):
    cases = [(k, text) for text in OBJECTIVES for k in (31, 5)] + [(2, "NormFace(s=8) + R_w")]
    results = ranks(3, every_step, cases)
    for place, (k, text) in enumerate(cases):
        parts = [result[place] for result in results]
        weight, classes, of_rows, of_z = (
            torch.cat([part[name] for part in parts]) for name in ("weight", "classes", "of_rows", "of_z")
        )
        z, labels = batch(k)
        assert torch.isin(labels[labels >= 0], classes).all()
        assert len(classes) < k or k < 31
        expected, expected_of_z, expected_of_rows = over_the_sample(parse(text), weight, classes, z, labels)
        assert [part["loss"] for part in parts] == pytest.approx([expected] * 3), text
        torch.testing.assert_close(of_rows, expected_of_rows, msg=lambda text_, t=text: f"{t}: {text_}")
        torch.testing.assert_close(of_z / 3, expected_of_z, msg=lambda text_, t=text: f"{t}: {text_}")


def train(rank, k, steps):
    head = head_of(k, "NormFace(s=8) + R_w")
    optimizer = RowSGD([head.weight], lr=0.5, momentum=0.9)
    trace = []
    for step in range(steps):
        before = head.weight.detach().clone()
        optimizer.zero_grad()
        head(*local_batch(rank, k, step)).backward()
        optimizer.step()
        trace.append((before, head.terms["ZeroCentroid"], (head.weight != before).any(1)))
    return trace, head.sampler.seed


def test_the_centroid_is_that_of_all_classes_of_all_ranks_while_their_rows_move(ranks):
    k = 31
    results = ranks(3, train, k, 5)
    assert len({seed for _, seed in results}) == 1
    for step, parts in enumerate(zip(*(trace for trace, _ in results), strict=True)):
        weight = torch.cat([before for before, _, _ in parts])
        expected = ZeroCentroid()(*batch(k, step)[:1], weight, batch(k, step)[1])
        for _, value, _ in parts:
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-15)
    moved = [
        torch.cat([changed for *_, changed in parts]) for parts in zip(*(t for t, _ in results), strict=True)
    ]
    assert all(0 < step.sum() < k for step in moved)


def in_different_modes(rank):
    head = head_of(31, "NormFace(s=8)").train(rank == 0)
    head(*local_batch(rank, 31))


def test_ranks_that_disagree_on_training_mode_raise(ranks):
    with pytest.raises(AssertionError, match=r"training=True, rank 1 has .*training=False"):
        ranks(3, in_different_modes)
