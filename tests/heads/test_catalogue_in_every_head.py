"""Every catalogue entry in every head: second derivatives, activation checkpointing, repeated backward.

`tests/distributed/test_catalogue_sharded.py` does the same for the sharded head.
"""

import contextlib
import runpy
from pathlib import Path

import pytest
import torch
from torch.autograd import gradgradcheck
from torch.utils.checkpoint import checkpoint

from tammes import PrototypeHead
from tammes.heads import prototype
from tammes.heads._stream import streamed
from tammes.heads._stream.backward import Backward
from tammes.losses import MixedLabels

EXAMPLES = runpy.run_path(str(Path(__file__).parents[1] / "losses" / "conftest.py"))
OBJECTIVES, CLASSES = EXAMPLES["OBJECTIVES"], EXAMPLES["CLASSES"]
ROWS, DIMENSIONS, CENTERS = 5, 4, 2
WAYS = {"dense": {"block_size": None}, "streamed": {}, "lean": {"block_size": 2}, "row chunks": {}}
VARIANTS = {"": {}, "sampled ": {"sample_rate": 0.3}, "centers ": {"centers": CENTERS}}
KINDS = {start + way: options | WAYS[way] for start, options in VARIANTS.items() for way in WAYS}
ALL = {"sample_rate": 1.0}
KINDS |= {"all sampled": ALL, "centers all sampled": VARIANTS["centers "] | ALL}
MIXED = ("dense", "lean", "row chunks", "sampled dense", "sampled streamed", "sampled row chunks")
MIXED += ("centers dense", "centers row chunks", "centers all sampled")
# Under create_graph nothing that was kept is used, so lean heads do as others; dense ones keep nothing.
TWICE = tuple(name for name in KINDS if "lean" not in name)
REPEATED = tuple(name for name in KINDS if "dense" not in name)
RECOMPUTED = ("row chunks", "sampled streamed", "sampled row chunks", "centers streamed")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*classes:UserWarning"),
    pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=list(OBJECTIVES)),
]


@pytest.fixture
def batch():
    return EXAMPLES["make_batch"](ROWS, DIMENSIONS, CLASSES, near=0.4)


@pytest.fixture
def heads(monkeypatch, objective, batch):
    """Each kind of head that takes the objective, by name; a generator, since each has its buffers."""
    weight = batch.weight.detach()
    others = torch.randn(CLASSES, CENTERS, DIMENSIONS, dtype=weight.dtype)

    def make(kinds):
        for name in kinds:
            options = KINDS[name]
            per_class = options.get("centers", 1)
            set_buffers(monkeypatch, 8 * CLASSES * per_class, row_chunks="row chunks" in name)
            try:
                head = PrototypeHead(DIMENSIONS, CLASSES, objective, dtype=weight.dtype, **options)
            except ValueError as error:
                if "does not support centers" not in str(error):
                    raise
                continue
            head.weight.data.copy_(weight if per_class == 1 else weight[:, None] + others)
            yield name, head

    return make


def set_buffers(monkeypatch, row: int, *, row_chunks: bool):
    """Room for two rows of similarities, or else for all; lean heads keep some blocks of classes only."""
    monkeypatch.setattr(prototype, "BUFFER_BYTES", 2 * row if row_chunks else 2**20)
    monkeypatch.setattr(streamed, "THINNEST_CHUNK", 1 if row_chunks else ROWS)
    monkeypatch.setattr(prototype, "LEAN_BUFFER_BYTES", 3 * row)


def reference(name):
    """The dense head of the same kind."""
    start = next(start for start in reversed(VARIANTS) if name.startswith(start))
    return f"{start}dense"


def restart(head):
    """Draw the classes and margins of the first step again, and forget its statistics."""
    torch.default_generator.manual_seed(0)
    if head.running is not None:
        head.running.reset()
    if head.sampler is not None:
        head.sampler.seed, head.sampler.draws = 7, 0
        head.sampler._numbers.clear()
    return head


def leaves_of(head, z):
    """What the loss is differentiated by: embeddings, prototypes, learned scales."""
    return (z, head.weight, *(head.scales or {}).values())


def gradients(loss, leaves, **options):
    found = torch.autograd.grad(loss.sum(), leaves, allow_unused=True, materialize_grads=True, **options)
    return [g.to_dense() for g in found]


def compare(found, expected, name):
    torch.testing.assert_close(found, expected, msg=lambda text: f"{name}: {text}")


def mixed(labels):
    return MixedLabels(labels, labels.roll(1), torch.linspace(0, 1, ROWS, dtype=torch.float64))


def test_mixed_labels_and_class_weights_are_those_of_the_dense_formula(heads, batch):
    z, _, labels = batch
    expected = {}
    for name, head in heads(MIXED):
        head.class_weight = torch.linspace(0, 2, CLASSES, dtype=torch.float64)
        loss = restart(head)(z, mixed(labels))
        found = [loss.detach(), *gradients(loss, leaves_of(head, z))]
        compare(found, expected.setdefault(reference(name), found), name)


def test_second_derivatives_are_those_of_the_dense_formula(heads, batch):
    z, _, labels = batch
    expected = {}
    for name, head in heads(TWICE):
        first = gradients(restart(head)(z, labels), leaves_of(head, z), create_graph=True)
        penalty = sum(g.square().sum() for g in first)
        found = gradients(penalty, leaves_of(head, z)) if penalty.requires_grad else []
        compare(found, expected.setdefault(reference(name), found), name)


def test_second_derivatives_are_derivatives_of_the_first(heads, objective, batch):
    if not EXAMPLES["is_exact"](objective):
        pytest.skip("the gradient is not that of the value, on purpose")
    z, weight, labels = batch
    (_, whole), (_, sampled) = heads(("streamed", "sampled streamed"))

    def of_both(z, weight):
        return torch.func.functional_call(restart(whole), {"weight": weight}, (z, labels)).sum()

    def of_embeddings(z):
        return restart(sampled)(z, labels).sum()

    assert gradgradcheck(of_both, [z, weight], fast_mode=True, nondet_tol=1e-10)
    assert gradgradcheck(of_embeddings, [z], fast_mode=True, nondet_tol=1e-10)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_a_recomputed_forward_gives_the_same_gradients_and_counts_once(heads, batch):
    z, _, labels = batch
    for name, head in heads(RECOMPUTED):
        plain = restart(head)(z, labels)
        expected = gradients(plain, leaves_of(head, z))
        once = [buffer.clone() for buffer in head.buffers()]
        for reentrant in (False, True):
            z.grad = None
            head.zero_grad()
            loss = checkpoint(restart(head), z, labels, use_reentrant=reentrant)
            torch.testing.assert_close(loss, plain)
            loss.sum().backward()
            assert head.sampler is None or head.sampler.draws == 1
            found = [torch.zeros_like(x) if x.grad is None else x.grad.to_dense() for x in leaves_of(head, z)]
            compare(found, expected, name)
            compare(list(head.buffers()), once, name)


def test_a_backward_can_be_repeated_and_interrupted(heads, batch, monkeypatch):
    z, _, labels = batch
    fill, interrupting = Backward._fill_weight, False

    def interrupted(self, *arguments):
        if interrupting:
            raise KeyboardInterrupt
        fill(self, *arguments)

    monkeypatch.setattr(Backward, "_fill_weight", interrupted)
    for name, head in heads(REPEATED):
        expected = gradients(restart(head)(z, labels), leaves_of(head, z))
        loss = restart(head)(z, labels)
        interrupting = True
        with contextlib.suppress(KeyboardInterrupt):
            gradients(loss, leaves_of(head, z), retain_graph=True)
        interrupting = False
        for _ in range(2):
            compare(gradients(loss, leaves_of(head, z), retain_graph=True), expected, name)
