"""Second derivatives of a head are those of the dense formula, by whatever route they are asked for."""

import pytest
import torch

from tammes import PrototypeHead, parse

TEXTS = ["CosFace(s=8, m=0.2)", "LMSoftmax(s=8)", "R_sm", "CE + 0.5*R_sm + 10*R_w", "NormFace(s=4) + MHE"]
HEADS = {"streamed": {}, "lean": {"block_size": 3}, "sampled": {"sample_rate": 1.0}}


def heads_of(text, **options):
    """A dense head and another with the same prototypes."""
    dense, other = (
        PrototypeHead(4, 7, parse(text), dtype=torch.float64, **some)
        for some in ({"block_size": None}, options)
    )
    other.weight.data.copy_(dense.weight.data)
    return dense, other


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(5, 4, dtype=torch.float64, generator=generator)
    return z, torch.randint(7, (5,), generator=generator)


@pytest.mark.parametrize("options", HEADS.values(), ids=list(HEADS))
@pytest.mark.parametrize("text", TEXTS)
def test_hessians(text, options, batch):
    z, labels = batch
    dense, other = (
        torch.autograd.functional.hessian(lambda q, head=head: head(q, labels), z)
        for head in heads_of(text, **options)
    )
    assert text == "NormFace(s=4) + MHE" or dense.abs().max() > 1e-3
    torch.testing.assert_close(other, dense)


def test_batched_hessians(batch):
    z, labels = batch
    dense, other = (
        torch.autograd.functional.hessian(lambda q, head=head: head(q, labels), z, vectorize=True)
        for head in heads_of("CE + 0.5*R_sm + 10*R_w")
    )
    torch.testing.assert_close(other, dense)


def penalised_gradients(head, z, labels, *, by_backward):
    """Gradients of |dL/dz|^2 + |dL/dW|^2, the first ones taken in one of two ways."""
    z = z.clone().requires_grad_()
    head.weight.grad = None
    loss = head(z, labels)
    if by_backward:
        loss.backward(create_graph=True)
        first = z.grad, head.weight.grad
    else:
        first = torch.autograd.grad(loss, (z, head.weight), create_graph=True)
    penalty = sum(g.to_dense().square().sum() for g in first)
    second = torch.autograd.grad(penalty, (z, head.weight))
    head.weight.grad = z.grad = None  # the graph and its leaves hold each other
    return [g.to_dense() for g in second]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
@pytest.mark.parametrize("by_backward", [False, True], ids=["grad", "backward"])
@pytest.mark.parametrize("options", HEADS.values(), ids=list(HEADS))
@pytest.mark.parametrize("text", TEXTS)
def test_gradient_penalties(text, options, by_backward, batch):
    dense, other = (
        penalised_gradients(head, *batch, by_backward=by_backward) for head in heads_of(text, **options)
    )
    assert all(g.abs().max() > 1e-3 for g in dense)
    torch.testing.assert_close(other, dense)
