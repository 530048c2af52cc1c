"""Every catalogue entry in a sharded head: second derivatives are refused, the rest repeats."""

import runpy
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tammes.heads import ShardedPrototypeHead

EXAMPLES = runpy.run_path(str(Path(__file__).parents[1] / "losses" / "conftest.py"))
KINDS = {"streamed": {}, "lean": {"block_size": 2}, "sampled": {"sample_rate": 0.3}}
REFUSAL = "block_size=None"

pytestmark = pytest.mark.filterwarnings("ignore:.*classes:UserWarning")


def restart(head):
    """Draw the classes and margins of the first step again, and forget its statistics."""
    torch.default_generator.manual_seed(0)
    if head.running is not None:
        head.running.reset()
    if head.sampler is not None:
        head.sampler.draws = 0
        head.sampler._numbers.clear()
    return head


def gradients(loss, leaves, **options):
    found = torch.autograd.grad(loss.sum(), leaves, allow_unused=True, materialize_grads=True, **options)
    return [g.to_dense() for g in found]


def refused(function):
    try:
        function()
    except RuntimeError as error:
        return REFUSAL in str(error)
    return False


def faults_of(head, z, labels):
    """What is wrong with a head, by name."""
    leaves = (z, head.weight, *(head.scales or {}).values())
    faults = []
    loss = restart(head)(z, labels)
    if not refused(lambda: torch.autograd.grad(loss.sum(), leaves, create_graph=True, retain_graph=True)):
        faults.append("create_graph")
    if not refused(lambda: torch.func.grad(lambda q: head(q, labels).sum())(z.detach())):
        faults.append("torch.func")
    expected, again = (gradients(loss, leaves, retain_graph=True) for _ in range(2))
    if not all(map(torch.allclose, again, expected)):
        faults.append("repeated")
    for reentrant in (False, True):
        z.grad = None
        head.zero_grad()
        checkpoint(restart(head), z, labels, use_reentrant=reentrant).sum().backward()
        found = [torch.zeros_like(x) if x.grad is None else x.grad.to_dense() for x in leaves]
        if not all(map(torch.allclose, found, expected)):
            faults.append(f"checkpoint, reentrant={reentrant}")
    return faults


def walk(rank):
    z, weight, labels = EXAMPLES["make_batch"](6, 4, EXAMPLES["CLASSES"], near=0.4)
    own = slice(3 * rank, 3 * rank + 3)
    faults = {}
    for name, objective in EXAMPLES["OBJECTIVES"].items():
        for kind, options in KINDS.items():
            torch.manual_seed(0)
            head = ShardedPrototypeHead(4, len(weight), objective, dtype=weight.dtype, **options)
            first, last = head.class_range
            head.weight.data.copy_(weight[first:last])
            local = z.detach()[own].clone().requires_grad_()
            if found := faults_of(head, local, labels[own]):
                faults[f"{name}, {kind}"] = found
    return faults


def test_the_catalogue_in_sharded_heads(ranks):
    assert ranks(2, walk) == [{}, {}]
