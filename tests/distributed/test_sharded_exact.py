"""Loss and gradients of the sharded head against the dense one, for the whole catalogue."""

import math
import runpy
from itertools import product
from pathlib import Path

import pytest
import torch

from tammes.heads import PrototypeHead, ShardedPrototypeHead
from tammes.heads._ranks import collectives
from tammes.losses import MixedLabels
from tammes.losses._engine import batch_loss
from tammes.losses._engine.labels import labelling

CATALOGUE = runpy.run_path(str(Path(__file__).parents[1] / "losses" / "conftest.py"))
SIZES = {2: [14, 9], 3: [11, 0, 12]}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

pytestmark = pytest.mark.filterwarnings("ignore:.*classes:UserWarning")


def objectives(k):
    return {**CATALOGUE["make_examples"](k), **CATALOGUE["make_sums"](k)}


def global_batch(d, k, dtype):
    batch = CATALOGUE["make_batch"](23, d, k, near=0.3, dtype=dtype)
    return batch.embeddings.detach(), batch.weight.detach(), batch.labels


def numbers_of(head, z, *labels, times=1, **options):
    """Loss, or the losses of all rows if not reduced, and the gradients of their sum times a factor."""
    z = z.clone().requires_grad_()
    torch.manual_seed(0)  # of random margins
    if head.running is not None:
        head.running.reset()
    loss = head(z, *labels, **options)
    (times * loss.sum()).backward()
    of_z, of_weight = (torch.zeros_like(x) if x.grad is None else x.grad for x in (z, head.weight))
    return loss.detach().double(), of_z.double(), of_weight.double()


def sharded_head(weight, objective, **options):
    head = ShardedPrototypeHead(weight.shape[1], len(weight), objective, dtype=weight.dtype, **options)
    first, last = head.class_range
    head.weight.data.copy_(weight[first:last])
    return head


def dense_head(weight, objective, **options):
    k, d = weight.shape
    head = PrototypeHead(d, k, objective, dtype=weight.dtype, block_size=None, **options)
    head.weight.data.copy_(weight)
    return head


def sharded_numbers(head, z, labels, world_size, **options):
    """Of the sum over all rows, where ranks get the losses of their own: the mean over ranks is minimized."""
    unreduced = getattr(head.objective, "reduction", "mean") == "none"
    return numbers_of(head, z, labels, times=world_size if unreduced else 1, **options)


def joined(parts):
    """The numbers of all ranks, joined as a single head would return them."""
    losses, of_z, of_weight = zip(*parts, strict=True)
    loss = torch.cat(losses) if losses[0].ndim else torch.stack(losses)
    return loss, torch.cat(of_z), torch.cat(of_weight)


def dense_numbers(head, z, labels, world_size, **options):
    """What the sharded head should return: the gradient of z times the world size."""
    loss, of_z, of_weight = numbers_of(head, z, labels, **options)
    if z.dtype == torch.float64:
        return loss, world_size * of_z, of_weight
    head.weight.grad = None  # in lower precision the factor is rounded on the way
    return loss, numbers_of(head, z, labels, times=world_size, **options)[1], of_weight


def in_three_dtypes(rank, sizes):
    results = []
    for objective, dtype in product(objectives(101).values(), DTYPES):
        z, weight, labels = global_batch(33, 101, dtype)
        head = sharded_head(weight, objective, block_size=16)
        results.append(sharded_numbers(head, z.split(sizes)[rank], labels.split(sizes)[rank], len(sizes)))
    return results


def in_three_dtypes_like_many_ranks(rank, sizes):
    """Each rank merges the statistics of some rows, as if there were too many ranks to send them to all."""
    collectives.ONE_MESSAGE = 1
    return in_three_dtypes(rank, sizes)


@pytest.mark.parametrize(
    ("world_size", "numbers"),
    [(2, in_three_dtypes), (3, in_three_dtypes), (3, in_three_dtypes_like_many_ranks)],
)
def test_sharded_is_as_accurate_as_dense(world_size, numbers, ranks):
    sizes = SIZES[world_size]
    results = ranks(world_size, numbers, sizes)
    cases = product(objectives(101).items(), DTYPES)
    for ((name, objective), dtype), *parts in zip(cases, *results, strict=True):
        z, weight, labels = global_batch(33, 101, dtype)
        truth = dense_numbers(dense_head(weight.double(), objective), z.double(), labels, world_size)
        plain = dense_numbers(dense_head(weight, objective), z, labels, world_size)
        for exact, reference, ours in zip(truth, plain, joined(parts), strict=True):
            budget = (reference - exact).abs().max()
            slack = 32 * torch.finfo(torch.float32).eps * exact.abs().max() + torch.finfo(dtype).tiny
            assert ((ours - exact).abs() <= budget + slack).all(), (name, dtype)


def local_part(rank, sizes, z, labels, k):
    """Mixed labels on the first rank, plain ones with an ignored row and sample weights on the last."""
    weights = torch.linspace(0.5, 2, len(labels), dtype=torch.float64)
    mixed = MixedLabels(labels, (labels + 1) % k, torch.linspace(0, 1, len(labels), dtype=torch.float64))
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    if rank == 0:
        return z[own], MixedLabels(*(part[own] for part in mixed)), None
    plain = labels.clone()
    plain[-2] = -100
    return z[own], plain[own], weights[own] if rank == len(sizes) - 1 else None


def global_part(sizes, z, labels, k):
    """The same labels for one process."""
    weights = torch.linspace(0.5, 2, len(labels), dtype=torch.float64)
    weights[: -sizes[-1]] = 1
    lam = torch.linspace(0, 1, len(labels), dtype=torch.float64)
    first = torch.arange(len(labels)) < sizes[0]
    a = labels.clone()
    a[-2] = -100
    b = torch.where(first, (labels + 1) % k, labels)
    return MixedLabels(a, b, torch.where(first, lam, 1.0)), weights


def of_few_classes(rank, sizes, k):
    z, weight, labels = global_batch(4, k, torch.float64)
    class_weight = torch.linspace(1, 3, k)
    results = []
    for objective in objectives(k).values():
        head = sharded_head(weight, objective, class_weight=class_weight)
        own_z, own_labels, own_weight = local_part(rank, sizes, z, labels, k)
        numbers = sharded_numbers(head, own_z, own_labels, len(sizes), sample_weight=own_weight)
        results.append((*numbers, dict(head.terms)))
    return results


@pytest.mark.parametrize("k", [7, 2])
def test_labels_of_every_kind_on_three_ranks_of_which_some_have_no_class_or_no_sample(k, ranks, monkeypatch):
    """Each row divides as its own kind of label does: mixed ones count once, indices by their class."""
    sizes = SIZES[3]
    soft = torch.arange(sum(sizes)) < sizes[0]
    monkeypatch.setattr(batch_loss, "labelling", lambda *a, **b: labelling(*a, **b)._replace(soft=soft))
    results = ranks(3, of_few_classes, sizes, k)
    z, weight, labels = global_batch(4, k, torch.float64)
    mixed, weights = global_part(sizes, z, labels, k)
    for (name, objective), *parts in zip(objectives(k).items(), *results, strict=True):
        head = dense_head(weight, objective, class_weight=torch.linspace(1, 3, k))
        expected = dense_numbers(head, z, mixed, len(sizes), sample_weight=weights)
        ours = joined([part[:3] for part in parts])
        for exact, value in zip(expected, ours, strict=True):
            torch.testing.assert_close(
                value, exact.expand_as(value), rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
            )
        for terms in (part[3] for part in parts):
            assert list(terms) == list(head.terms)
            for term, value in terms.items():
                assert math.isclose(value, head.terms[term], rel_tol=1e-9, abs_tol=1e-11), (name, term)
