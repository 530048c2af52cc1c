"""No step mixes devices or waits for one: every catalogue entry on CUDA tensors without contents.

Fake tensors have shapes, dtypes and devices but no values: an operation that needs a value on the host
(`item`, `nonzero`, a condition) fails, and so does one that mixes devices. Copies to the host are counted.
Autograd's engine needs a real device, so `Backward` is called directly.
"""

import runpy
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tammes import MixedLabels, PrototypeHead
from tammes.heads import prototype
from tammes.heads._stream.backward import Backward
from tammes.heads._stream.blocks import Inputs, Options
from tammes.heads._stream.forward import Forward
from tammes.heads._stream.workspace import Workspace
from tammes.losses._engine.dense_statistics import dense
from tammes.losses._engine.statistics import OverClasses
from tammes.losses.objective import PrototypeTerm

EXAMPLES = runpy.run_path(str(Path(__file__).parents[1] / "losses" / "conftest.py"))
OBJECTIVES, CLASSES = EXAMPLES["OBJECTIVES"], EXAMPLES["CLASSES"]
KINDS = {
    "dense": {"block_size": None},
    "streamed": {},
    "lean": {"block_size": 2},
    "sampled dense": {"block_size": None, "sample_rate": 0.3},
    "sampled": {"sample_rate": 0.3},
    "sampled, mixed labels": {"sample_rate": 0.3},
}


def takes_centers(objective):
    """No term reads a sum over all prototypes."""
    terms = [term for _, term in objective.weighted_terms]
    return not any(t.need.mean or t.need.smoothing or isinstance(t, PrototypeTerm) for t in terms)


WITH_CENTERS = {name: one for name, one in OBJECTIVES.items() if takes_centers(one)}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*classes:UserWarning"),
    pytest.mark.skipif(
        torch.__version__.startswith("2.9.") and not torch.cuda.is_available(),
        reason="torch 2.9 asks the driver even for fake CUDA tensors",
    ),
]
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=list(OBJECTIVES))


class CopiesToTheHost(TorchDispatchMode):
    """Collects operations that turn a CUDA tensor into one on the host."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given, made = (
            {x.device.type for x in tree_leaves(tree) if isinstance(x, torch.Tensor)}
            for tree in ((args, kwargs), result)
        )
        if "cuda" in given and "cpu" in made:
            self.found.append(str(func))
        return result


@pytest.fixture(autouse=True)
def numbers_of_the_host(monkeypatch):
    """Under the mode tensors on the host have no values either: heads mark a forward with one of those."""
    monkeypatch.setattr(torch, "randint", lambda *_, **__: 0)


def labels_of(kind):
    labels = torch.zeros(9, dtype=torch.long, device="cuda")
    return MixedLabels(labels, labels, torch.ones(9, device="cuda")) if "mixed" in kind else labels


def assert_no_waiting(objective, **shared):
    with FakeTensorMode():
        for kind, options in KINDS.items():
            head = PrototypeHead(4, CLASSES, objective, device="cuda", **shared, **options)
            embeddings = torch.randn(9, 4, device="cuda", requires_grad=True)
            with CopiesToTheHost() as copies:
                loss = head(embeddings, labels_of(kind))
            assert loss.device.type == "cuda"
            assert copies.found == [], kind


@every_objective
def test_a_forward_does_not_wait_for_the_device(objective):
    assert_no_waiting(objective)


@pytest.mark.parametrize("objective", WITH_CENTERS.values(), ids=list(WITH_CENTERS))
def test_nor_does_one_with_several_prototypes_per_class(objective):
    assert_no_waiting(objective, centers=2)


def test_nor_do_fast_products():
    assert torch.get_autocast_dtype("cuda") == torch.float16  # whose range has to be minded
    assert_no_waiting(OBJECTIVES["CosFace"], fast_products=True)


@every_objective
def test_a_streamed_backward_does_not_wait_for_the_device(objective, monkeypatch):
    plans = []
    monkeypatch.setattr(prototype, "streamed", lambda *given, **_: plans.append(given[3]) or dense(*given))
    with FakeTensorMode():
        head = PrototypeHead(4, CLASSES, objective, device="cuda")
        head(torch.randn(9, 4, device="cuda"), labels_of("index"))
        plan = plans[0]
        rows, norms = torch.randn(9, 4, device="cuda"), torch.ones(9, device="cuda")
        weight = torch.randn(CLASSES, 4, device="cuda")
        inputs = Inputs(rows, norms, weight, torch.zeros(9, 1, dtype=torch.long, device="cuda"))
        options = Options(plan, 2, 2, fast_products=False, workspace=Workspace())
        with torch.no_grad(), CopiesToTheHost() as copies:  # as in an autograd function
            forward = Forward(inputs, options)
            statistics, blocks = forward.run()
            entries = [torch.ones_like(x) if x.is_floating_point() else None for x in statistics.pack()]
            gradients = Backward(
                inputs,
                forward.inverse_norms,
                statistics=statistics,
                upstream=OverClasses.unpack(plan, entries),
                kept=blocks.blocks,  # the first; the others are formed again
                options=options,
                need_rows=True,
                need_weight=True,
            ).run()
    assert all(g.device.type == "cuda" for g in gradients if g is not None)
    assert copies.found == []


def test_what_these_tests_would_notice():
    with FakeTensorMode():
        vector = torch.ones(3, device="cuda")
        with pytest.raises(DataDependentOutputException):
            vector.sum().item()
        with pytest.raises(RuntimeError, match="device"):
            vector + torch.ones(3)
        with CopiesToTheHost() as copies:
            vector.cpu()
    assert len(copies.found) == 1
