"""Every catalogue entry in float32 and half precision: the streamed path errs no more than the plain one,
and nothing is NaN where cosines are 1 or -1, scales are large or vectors are zero."""

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from tammes.losses import NormFace, Objective, parse
from tammes.losses._engine.dense_statistics import dense
from tammes.losses.objective import combine

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def numbers(way, objective, batch, loss_by, *, autocast: bool = False) -> list[Tensor]:
    """Value (one a row where the objective has such) and gradients, as float64."""
    z, w = (x.detach().requires_grad_() for x in (batch.embeddings, batch.weight))
    reduction = "mean" if "lse" in str(objective) else "none"
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = loss_by(way, objective, z, w, batch.labels, reduction=reduction)
    loss.mean().backward()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in (z, w)]
    return [x.detach().double() for x in (loss, *gradients)]


@DTYPES
def test_streamed_errs_no_more_than_dense(wide_objective, dtype, wide_ways, new_batch, loss_by):
    batch = new_batch(29, 33, 517, near=0.3, dtype=dtype)
    truth = numbers(dense, wide_objective, batch.to(torch.float64), loss_by)
    plain = numbers(dense, wide_objective, batch, loss_by)
    for way in wide_ways:
        ours = numbers(way, wide_objective, batch, loss_by)
        for exact, reference, value in zip(truth, plain, ours, strict=True):
            slack = 32 * torch.finfo(torch.float32).eps * exact.abs().max() + torch.finfo(dtype).tiny
            assert ((value - exact).abs() <= (reference - exact).abs().max() + slack).all()


def batch_at_the_ends(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Targets at cosine 1 and -1, exactly and to rounding; a zero embedding and a zero prototype."""
    e, generator = torch.eye(5), torch.Generator().manual_seed(3)
    some, other = torch.randn(2, 5, generator=generator)
    weight = torch.stack([e[0], -e[0], 3 * e[1], e[2] + e[3], some, other, torch.zeros(5)])
    pairs = [(2 * e[0], 0), (e[0], 1), (-4 * e[1], 2), (2 * some, 4), (-some, 4), (-other, 5)]
    pairs += [(torch.zeros(5), 3), (torch.zeros(5), 6), (other, 6)]
    embeddings = torch.stack([z for z, _ in pairs])
    labels = torch.tensor([y for _, y in pairs])
    return embeddings.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


def with_scale(objective: Objective, scale: float) -> Objective:
    """`objective` with every scale of cosines replaced."""
    return combine(
        (coefficient, dataclasses.replace(term, scale=scale) if scaled(term) else term)
        for coefficient, term in objective.weighted_terms
    )


def scaled(term) -> bool:
    return hasattr(term, "scale") and getattr(term, "normalize", True)


@DTYPES
def test_finite_at_the_ends_up_to_scale_512(objective, soft_objectives, dtype, ways, loss_by):
    kinds = [*((w, "hard") for w in ways), (dense, "soft")]
    if objective not in soft_objectives:
        kinds.pop()
    for scale, (way, kind) in itertools.product((16.0, 512.0), kinds):
        z, w, y = batch_at_the_ends(dtype)
        labels = torch.eye(7)[y] if kind == "soft" else y
        loss = loss_by(way, with_scale(objective, scale), z, w, labels)
        loss.mean().backward()
        assert loss.dtype == torch.float32
        assert loss.isfinite().all()
        for leaf in (z, w):
            assert leaf.dtype == dtype
            assert leaf.grad is None or leaf.grad.isfinite().all()


def test_autocast_changes_nothing(objective, ways, new_batch, loss_by):
    batch = new_batch(dtype=torch.float32)
    for way in ways:
        plain = numbers(way, objective, batch, loss_by)
        under = numbers(way, objective, batch, loss_by, autocast=True)
        assert all(map(torch.equal, plain, under))


@pytest.mark.parametrize(
    ("of_embeddings", "of_weight", "of_loss"),
    [
        (torch.float16, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
    ],
    ids=str,
)
def test_dtypes_may_differ_and_stay(way, of_embeddings, of_weight, of_loss, new_batch, loss_by):
    objective = parse("CosFace(s=8, m=0.2) + CE + 0.5*R_sm + 10*R_w + MHE")
    batch = new_batch(dtype=torch.float64)
    z, w = batch.to(of_embeddings).embeddings, batch.to(of_weight).weight
    loss = loss_by(way, objective, z, w, batch.labels)
    loss.backward()
    assert loss.dtype == of_loss
    assert (z.dtype, w.dtype) == (of_embeddings, of_weight)
    assert (z.grad.dtype, w.grad.dtype) == (of_embeddings, of_weight)
    exact = loss_by(dense, objective, z.double(), w.double(), batch.labels)
    torch.testing.assert_close(loss, exact.to(of_loss))


def test_a_zero_embedding_or_prototype_has_cosine_0_with_every_other(way, loss_by):
    z, w, y = batch_at_the_ends(torch.float64)
    loss = loss_by(way, NormFace(scale=8), z, w, y, reduction="none")
    assert loss[6:8].tolist() == pytest.approx([torch.tensor(7.0).log().item()] * 2)
    cosines = torch.nn.functional.normalize(z, dim=1) @ torch.nn.functional.normalize(w, dim=1).T
    assert cosines[8, 6] == 0
    assert loss[8].item() == pytest.approx((8 * cosines[8]).logsumexp(0).item())
