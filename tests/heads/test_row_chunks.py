"""Rows in chunks, the gradient in the forward: which batches take it, who owns its memory, what it needs."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from tammes import MixedLabels, PrototypeHead, parse
from tammes.heads import prototype
from tammes.heads._stream import streamed
from tammes.heads._stream.backward import Backward
from tammes.heads._stream.row_chunks import RowChunks
from tammes.heads._stream.streamed import BUFFER_BYTES, LEAN_BUFFER_BYTES, rows_per_chunk
from tammes.losses._engine.plan import Plan

N, K, D = 13, 83, 7
TEXTS = ["ArcFace(s=16, m=0.3) + 0.5*R_sm", "NormFace(s=8)", "CE(label_smoothing=0.1) + 10*R_w + MHE"]


@pytest.fixture(autouse=True)
def runs(monkeypatch):
    """Room for four rows of similarities; collects one entry for each time gradients are formed in chunks."""
    monkeypatch.setattr(prototype, "BUFFER_BYTES", 4 * K * 8)
    monkeypatch.setattr(streamed, "THINNEST_CHUNK", 1)
    run, found = RowChunks.run, []

    def counted(self):
        found.append(self)
        return run(self)

    monkeypatch.setattr(RowChunks, "run", counted)
    return found


def make_head(text, **options):
    torch.manual_seed(0)
    return PrototypeHead(D, K, parse(text), dtype=torch.float64, **options)


@pytest.fixture
def z():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, D, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.fixture
def labels():
    return torch.randint(K, (N,), generator=torch.Generator().manual_seed(2))


def gradients(loss, *leaves, **options):
    return [g.to_dense() for g in torch.autograd.grad(loss, leaves, **options)]


def plain(text, z, labels, **options):
    """Loss and gradients of the dense head."""
    head = make_head(text, block_size=None, **options)
    loss = head(z, labels)
    return loss.detach(), gradients(loss, z, head.weight)


def plan_of_a_mean():
    return Plan((), (), (), (), norms=False, loss_of_rows=lambda *_: None)


@pytest.mark.parametrize(
    ("n", "k", "bytes_", "rows"),
    [
        (256, 100_000, LEAN_BUFFER_BYTES, 128),
        (2048, 50_000, LEAN_BUFFER_BYTES, 256),
        (2048, 50_000, BUFFER_BYTES, 1024),
        (256, 100_000, BUFFER_BYTES, None),  # kept whole
        (512, 1_000_000, LEAN_BUFFER_BYTES, None),  # too thin
        (1000, 100_000, LEAN_BUFFER_BYTES, 128),
    ],
)
def test_the_choice_is_by_shape(monkeypatch, n, k, bytes_, rows):
    monkeypatch.setattr(streamed, "THINNEST_CHUNK", 96)
    z, weight = torch.empty(n, 512, device="meta"), torch.empty(k, 512, device="meta")
    assert rows_per_chunk(z, weight, plan_of_a_mean(), bytes_) == rows
    assert rows_per_chunk(z, weight.half(), plan_of_a_mean(), bytes_) is None
    assert rows_per_chunk(z, weight, plan_of_a_mean()._replace(loss_of_rows=None), bytes_) is None
    if rows is not None:
        assert rows * k * 4 <= bytes_


def test_the_docstring_states_the_budgets():
    budgets = [f"{size // 2**20} MiB" for size in (BUFFER_BYTES, LEAN_BUFFER_BYTES)]
    assert re.findall(r"\d+ MiB", PrototypeHead.__doc__) == budgets


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("factor", [1.0, 65536.0, 0.25])
def test_upstream_factors_reach_the_gradients(text, factor, z, labels, runs):
    head = make_head(text)
    found = gradients(factor * head(z, labels), z, head.weight)
    _, expected = plain(text, z, labels)
    torch.testing.assert_close(found, [factor * g for g in expected])
    assert len(runs) == 1


@pytest.mark.parametrize("text", TEXTS)
def test_values_and_terms_are_those_of_the_dense_head(text, z, labels, runs):
    head, dense = make_head(text), make_head(text, block_size=None)
    labels[3] = -100
    for some in (labels, MixedLabels(labels, labels.roll(1), 0.3)):
        torch.testing.assert_close(head(z, some), dense(z, some))
        assert list(head.terms) == list(dense.terms)
        torch.testing.assert_close(head.terms, dense.terms)
    assert len(runs) == 2


@pytest.mark.parametrize("text", TEXTS)
def test_a_repeated_backward_gives_the_same_gradients(text, z, labels, runs):
    head = make_head(text)
    loss = head(z, labels)
    first = gradients(loss, z, head.weight, retain_graph=True)
    copies = [g.clone() for g in first]
    second = gradients(2 * loss, z, head.weight, retain_graph=True)
    torch.testing.assert_close(first, copies)  # they are the caller's
    torch.testing.assert_close(second, [2 * g for g in first])
    torch.testing.assert_close(gradients(loss, z, head.weight), first)
    assert len(runs) == 3


def test_gradients_accumulate_over_steps(z, labels):
    head = make_head(TEXTS[0])
    _, (by_z, by_weight) = plain(TEXTS[0], z, labels)
    losses = [head(z, labels) for _ in range(2)]  # both before their backwards
    for loss in losses:
        (loss / 2).backward()
    head(z, labels).backward()
    torch.testing.assert_close([z.grad, head.weight.grad], [2 * by_z, 2 * by_weight])


def test_the_gradient_is_returned_without_a_copy(z, labels, runs):
    head = make_head(TEXTS[1])
    loss = head(z, labels)
    place = runs[0].grad_weight.data_ptr()
    runs.clear()
    loss.backward()
    assert head.weight.grad.data_ptr() == place


@pytest.mark.parametrize("text", TEXTS)
def test_frozen_inputs_cost_nothing_and_change_nothing(text, z, labels, runs):
    _, (by_z, by_weight) = plain(text, z, labels)
    frozen = make_head(text, trainable=False)
    torch.testing.assert_close(gradients(frozen(z, labels), z), [by_z])
    assert runs[-1].grad_weight is None
    head = make_head(text)
    torch.testing.assert_close(gradients(head(z.detach(), labels), head.weight), [by_weight])
    assert runs[-1].grad_embeddings is None


def test_without_gradients_none_are_computed(z, labels, runs):
    head = make_head(TEXTS[0])
    value, _ = plain(TEXTS[0], z, labels)
    with torch.no_grad():
        torch.testing.assert_close(head(z, labels), value)
    torch.testing.assert_close(make_head(TEXTS[0], trainable=False)(z.detach(), labels), value)
    assert not runs


def test_what_is_not_a_mean_over_samples_takes_blocks_of_classes(z, labels, runs):
    sample_weight = torch.rand(N, dtype=torch.float64)
    make_head(TEXTS[1])(z, labels, reduction="none")
    make_head("LMSoftmax(s=8, reduction='lse')")(z, labels)
    make_head("LMSoftmax(s=8, reduction='none')")(z, labels)
    make_head(TEXTS[1])(z, labels, sample_weight=sample_weight.clone().requires_grad_()).backward()
    assert not runs
    make_head(TEXTS[1])(z, labels, sample_weight=sample_weight)
    assert len(runs) == 1


@pytest.mark.parametrize("text", [*TEXTS, "CosFace(s=8, m=0.2) + 10*R_w + R_sm(form='mean')"])
def test_a_sampled_head_takes_chunks_too(text, z, labels, runs):
    head = make_head(text, sample_rate=0.6)
    value, expected = plain(text, z, labels, sample_rate=0.6)
    loss = head(z, labels)
    torch.testing.assert_close(loss, value)
    torch.testing.assert_close(gradients(loss, z, head.weight), expected)
    assert len(runs) == 1


def test_margins_per_class_of_a_sampled_head(z, labels, runs):
    margins = ", ".join(str(round(0.005 * j, 3)) for j in range(K))
    text = f"CosFace(s=8, m=[{margins}], label_smoothing=0.1)"
    options = {"sample_rate": 0.6, "class_weight": torch.linspace(0.1, 2, K)}
    head = make_head(text, **options)
    value, expected = plain(text, z, labels, **options)
    loss = head(z, labels)
    torch.testing.assert_close(loss, value)
    torch.testing.assert_close(gradients(loss, z, head.weight), expected)
    assert len(runs) == 1


@pytest.mark.parametrize("text", TEXTS)
def test_second_derivatives_are_those_of_the_dense_formula(text, z, labels, runs):
    found = []
    for options in ({}, {"block_size": None}):
        head = make_head(text, **options)
        first = gradients(head(z, labels), z, head.weight, create_graph=True)
        found.append(gradients(sum(g.square().sum() for g in first), z, head.weight))
    torch.testing.assert_close(*found)
    assert len(runs) == 1


def test_threads_that_share_a_graph_get_the_same_gradients(z, labels):
    head = make_head(TEXTS[0])
    _, expected = plain(TEXTS[0], z, labels)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(10):
            loss, start = head(z, labels), Barrier(3)

            def differentiate(factor, loss=loss, start=start):
                start.wait()
                return gradients(factor * loss, z, head.weight, retain_graph=True)

            for factor, found in zip((1, 2, 3), threads.map(differentiate, (1, 2, 3)), strict=True):
                torch.testing.assert_close(found, [factor * g for g in expected])


def test_threads_with_graphs_of_their_own_share_no_memory(z, labels):
    head = make_head(TEXTS[0])
    _, expected = plain(TEXTS[0], z, labels)
    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(lambda _: gradients(head(z, labels), z, head.weight), range(30)):
            torch.testing.assert_close(found, expected)


def test_an_interrupted_forward_leaves_nothing_behind(z, labels, monkeypatch):
    head = make_head(TEXTS[0])
    _, expected = plain(TEXTS[0], z, labels)
    gradients(head(z, labels), z, head.weight)
    fill, calls = Backward._fill_weight, []

    def interrupted(self, *arguments):
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        fill(self, *arguments)

    monkeypatch.setattr(Backward, "_fill_weight", interrupted)
    with pytest.raises(KeyboardInterrupt):
        head(z, labels)
    torch.testing.assert_close(gradients(head(z, labels), z, head.weight), expected)


def test_fast_products_are_as_accurate_as_their_dtype(z, labels, runs):
    head = make_head(TEXTS[0], fast_products=True).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head(z.detach().float().requires_grad_(), labels)
    loss.backward()
    value, (_, by_weight) = plain(TEXTS[0], z, labels)
    assert len(runs) == 1
    torch.testing.assert_close(loss.double(), value, rtol=0.02, atol=0.02)
    error = (head.weight.grad - by_weight).abs().max()
    assert 0 < error < 0.05 * by_weight.abs().max()


MEMORY = """
import sys
import torch
before = set(sys.modules)
from benchmarks.timing import peak_bytes
from tammes import PrototypeHead, parse
torch.set_num_threads(1)
head = PrototypeHead(32, 50_000, parse("ArcFace(s=64, m=0.5)"), block_size=4096)
z, labels = torch.randn(1024, 32).requires_grad_(), torch.randint(50_000, (1024,))
def step():
    head.weight.grad = z.grad = None
    head(z, labels).backward()
step()
head._workspace._free.clear()  # so that its buffer counts
print(peak_bytes(step, warm=False), "sympy" in sys.modules.keys() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is measured on Linux")
def test_a_lean_step_stays_within_its_memory():
    pytest.importorskip("benchmarks", reason="the benchmarks are not part of an installed package")
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    similarities = 4 * 1024 * 50_000
    peak, imported = done.stdout.split()
    assert int(peak) < 64 * 2**20 < similarities / 3
    assert imported == "False", "sympy takes 35 MB more; torch.autograd.grad imports it for grad_outputs"
