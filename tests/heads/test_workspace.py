"""Memory kept from step to step never changes a gradient, and is not copied or stored."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tammes import PrototypeHead, parse
from tammes.heads._stream import blocks
from tammes.heads._stream.backward import Backward
from tammes.heads._stream.workspace import Workspace

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
def test_stale_numbers_in_the_buffer_do_not_affect_results(text):
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


@pytest.mark.parametrize("text", [TEXT, "CE + 0.1*R_w"])
def test_a_gradient_that_was_dropped_leaves_its_memory_to_the_next(text):
    head = make_head()
    head.objective = parse(text)
    head(*batch(1)).backward()
    place = head.weight.grad.data_ptr()
    head.weight.grad = None
    head(*batch(2)).backward()
    assert head.weight.grad.data_ptr() == place


@pytest.mark.parametrize(
    "hold",
    [
        lambda grad: grad,
        lambda grad: grad[3:5],
        lambda grad: grad.detach().view(-1),
        lambda grad: grad.numpy(),
        lambda grad: grad.share_memory_().shape,  # another process may read it
    ],
)
def test_a_gradient_that_anybody_holds_is_not_overwritten(hold):
    head = make_head()
    head(*batch(1)).backward()
    held, place = hold(head.weight.grad), head.weight.grad.data_ptr()
    head.weight.grad = None
    head(*batch(2)).backward()
    assert head.weight.grad.data_ptr() != place
    del held


def test_a_gradient_that_is_added_to_is_not_overwritten():
    head, alone = make_head(), make_head()
    for seed in (1, 2, 3):
        head(*batch(seed)).backward()
    torch.testing.assert_close(head.weight.grad, sum(gradient(alone, seed) for seed in (1, 2, 3)))


def test_two_forwards_before_their_backwards_do_not_share_memory():
    head, alone = make_head(), make_head()
    losses = [head(*batch(seed)) for seed in (1, 2)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(head.weight.grad, gradient(alone, 1) + gradient(alone, 2))


def test_a_retained_graph_gives_the_same_gradient_after_another_step():
    head = make_head()
    loss = head(*batch(1))
    (first,) = torch.autograd.grad(loss, head.weight, retain_graph=True)
    gradient(head, 2)
    (again,) = torch.autograd.grad(loss, head.weight)
    torch.testing.assert_close(again, first)


def test_copies_and_pickles_start_without_a_buffer():
    head = make_head()
    gradient(head, 1)
    assert head._workspace._free
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert not other._workspace._free
        assert not other._workspace._gradient
        torch.testing.assert_close(gradient(other, 2), gradient(head, 2))


@pytest.mark.parametrize("few", [0, blocks.FEW])
@pytest.mark.parametrize("width", [1, 37, 192, 1000, 1088, 1100])
def test_the_first_of_equal_maxima_is_found(width, few, monkeypatch):
    monkeypatch.setattr(blocks, "FEW", few)
    generator = torch.Generator().manual_seed(width)
    matrix = torch.randint(-3, 3, (40, width), generator=generator).float()  # ties in every row
    matrix[0] = -torch.inf
    value, index = blocks.first_maximum(matrix)
    for row, (v, i) in enumerate(zip(value.tolist(), index.tolist(), strict=True)):
        numbers = matrix[row].tolist()
        assert (v, i) == (max(numbers), numbers.index(max(numbers)))


@pytest.mark.parametrize("text", [TEXT, "NormFace(s=8)", "CE + 0.1*R_w"])
def test_a_backward_that_was_interrupted_can_be_repeated(text, monkeypatch):
    head = make_head(block_size=30)
    head.objective = parse(text)
    expected = gradient(head, 1)
    loss = head(*batch(1))
    fill, calls = Backward._fill_weight, []

    def interrupted(self, *arguments):
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        fill(self, *arguments)

    monkeypatch.setattr(Backward, "_fill_weight", interrupted)
    with pytest.raises(KeyboardInterrupt):
        torch.autograd.grad(loss, head.weight, retain_graph=True)
    (again,) = torch.autograd.grad(loss, head.weight)
    torch.testing.assert_close(again, expected)


def test_threads_that_share_a_graph_get_the_same_gradients():
    head = make_head()
    expected = gradient(head, 1)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(20):
            loss, start = head(*batch(1)), Barrier(3)

            def differentiate(_, loss=loss, start=start):
                start.wait()
                return torch.autograd.grad(loss, head.weight, retain_graph=True)[0]

            for found in threads.map(differentiate, range(3)):
                torch.testing.assert_close(found, expected)


def test_threads_never_take_the_same_buffer():
    workspace, like = Workspace(), torch.empty(0)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(200):
            workspace.give(torch.empty(10))
            start = Barrier(4)

            def take(_, start=start):
                start.wait()
                return workspace.take(10, like)

            assert len({buffer.data_ptr() for buffer in list(threads.map(take, range(4)))}) == 4


def test_a_buffer_stays_on_its_device():
    workspace = Workspace()
    workspace.give(torch.empty(100))
    assert workspace.take(90, torch.empty(0, device="meta")).is_meta
    with FakeTensorMode():
        fake = torch.empty(100)
    workspace.give(fake)
    assert type(workspace.take(90, torch.empty(0))) is torch.Tensor


def test_a_smaller_batch_or_an_evaluation_leaves_the_buffer_to_the_next_step():
    head = make_head()
    gradient(head, 1, n=29)
    place = head._workspace._free[0].data_ptr()
    gradient(head, 2, n=5)
    with torch.no_grad():
        head(*batch(3))
    assert head._workspace._free[0].data_ptr() == place
    assert len(head._workspace._free[0]) == 29 * 83
