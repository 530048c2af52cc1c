"""Memory kept from step to step never changes a gradient, and is not copied or stored."""

import copy
import pickle

import pytest
import torch

from tammes import PrototypeHead, parse
from tammes.heads.blocks import CHUNK, first_maximum
from tammes.heads.workspace import Workspace

TEXT = "ArcFace(s=16, m=0.3) + 0.5*R_sm"


def make_head(**options):
    torch.manual_seed(0)
    return PrototypeHead(7, 83, parse(TEXT), **options).double()


def batch(seed, n=13):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 7, generator=generator, dtype=torch.float64)
    return z, torch.randint(83, (n,), generator=generator)


def gradient(head, seed, n=13):
    head.weight.grad = None
    head(*batch(seed, n)).backward()
    return head.weight.grad.clone()


@pytest.mark.parametrize("text", [TEXT, "NormFace(s=8)", "CE + 0.1*R_w"])
def test_a_buffer_full_of_the_last_steps_numbers_does_not_show(text):
    streamed, plain = make_head(), make_head(block_size=None)
    streamed.objective = plain.objective = parse(text)
    for seed, n in ((1, 13), (2, 13), (3, 5), (4, 29)):
        torch.testing.assert_close(gradient(streamed, seed, n), gradient(plain, seed, n))


def test_the_next_step_gets_the_same_memory():
    workspace, like = Workspace(), torch.empty(0)
    first = workspace.take(100, like)
    workspace.give(first)
    assert workspace.take(90, like).data_ptr() == first.data_ptr()
    assert workspace.take(90, like).data_ptr() != first.data_ptr()  # it is in use


def test_two_forwards_before_their_backwards_do_not_share_memory():
    head, alone = make_head(), make_head()
    losses = [head(*batch(seed)) for seed in (1, 2)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(head.weight.grad, gradient(alone, 1) + gradient(alone, 2))


def test_a_graph_that_is_kept_gives_the_same_gradient_again_after_another_step():
    head = make_head()
    loss = head(*batch(1))
    (first,) = torch.autograd.grad(loss, head.weight, retain_graph=True)
    gradient(head, 2)
    (again,) = torch.autograd.grad(loss, head.weight)
    torch.testing.assert_close(again, first)


def test_copies_and_pickles_start_without_a_buffer():
    head = make_head()
    gradient(head, 1)
    assert head._workspace._free is not None
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert other._workspace._free is None
        torch.testing.assert_close(gradient(other, 2), gradient(head, 2))


@pytest.mark.parametrize("width", [1, CHUNK - 1, CHUNK, 3 * CHUNK, 3 * CHUNK + 5])
def test_the_first_of_equal_maxima_is_found(width):
    generator = torch.Generator().manual_seed(width)
    matrix = torch.randint(-3, 3, (40, width), generator=generator).float()  # ties in every row
    matrix[0] = -torch.inf
    value, index = first_maximum(matrix)
    for row, (v, i) in enumerate(zip(value.tolist(), index.tolist(), strict=True)):
        numbers = matrix[row].tolist()
        assert (v, i) == (max(numbers), numbers.index(max(numbers)))
