"""Every catalogue entry with rows in chunks: the gradient in the forward is that of the plain formula."""

from functools import partial

import pytest
import torch

from tammes.losses import Objective
from tammes.losses._engine.dense_statistics import dense


def is_mean(objective: Objective) -> bool:
    """Whether rows can come in chunks."""
    return all(getattr(term, "reduction", "mean") == "mean" for _, term in objective.weighted_terms)


def gradients(loss, batch, factor=1.0):
    loss = factor * loss
    found = torch.autograd.grad(loss, batch[:2], allow_unused=True, materialize_grads=True)
    return [loss.detach(), *found]


@pytest.mark.parametrize("kind", ["hard", "mixed"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_is_that_of_the_dense_formula(
    objective, kind, weighted, batch, label_kinds, loss_by, row_chunks
):
    if not is_mean(objective):
        pytest.skip("not a mean over samples")
    labels, options = label_kinds[kind](batch.labels), {}
    if weighted:
        options["class_weight"] = torch.linspace(0, 2, 7, dtype=torch.float64)
        options["sample_weight"] = torch.linspace(0.5, 2, 9, dtype=torch.float64)
    expected = gradients(loss_by(dense, objective, *batch[:2], labels, **options), batch, 3.0)
    for chunk in (2, 9):
        way = partial(row_chunks, block_size=3, chunk=chunk)
        loss = loss_by(way, objective, *batch[:2], labels, **options)
        torch.testing.assert_close(gradients(loss, batch, 3.0), expected)


def test_rows_that_are_all_ignored_have_no_loss_and_no_gradient(objective, batch, loss_by, row_chunks):
    if not is_mean(objective):
        pytest.skip("not a mean over samples")
    labels = torch.full_like(batch.labels, -100)
    expected = gradients(loss_by(dense, objective, *batch[:2], labels), batch)
    way = partial(row_chunks, block_size=3, chunk=4)
    found = gradients(loss_by(way, objective, *batch[:2], labels), batch)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_chunks_err_no_more_than_the_dense_formula(wide_objective, dtype, new_batch, loss_by, row_chunks):
    if not is_mean(wide_objective):
        pytest.skip("not a mean over samples")
    batch = new_batch(29, 33, 517, near=0.3, dtype=dtype)
    if dtype != torch.float32:  # embeddings in half precision; such weights take blocks of classes
        batch = batch._replace(weight=batch.weight.detach().float().requires_grad_())
    exact = [x.detach().double().requires_grad_() for x in batch[:2]]
    truth = gradients(loss_by(dense, wide_objective, *exact, batch.labels), exact)
    plain = gradients(loss_by(dense, wide_objective, *batch), batch)
    ours = gradients(loss_by(partial(row_chunks, block_size=100, chunk=8), wide_objective, *batch), batch)
    for right, reference, value in zip(truth, plain, ours, strict=True):
        slack = 32 * torch.finfo(torch.float32).eps * right.abs().max() + torch.finfo(dtype).tiny
        assert ((value - right).abs() <= (reference - right).abs().max() + slack).all()
