"""Training on several ranks equals training on one: ten steps, clipping, loss scaling."""

import math

import pytest
import torch
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from tammes import parse
from tammes.heads import PrototypeHead, ShardedPrototypeHead, clip_grad_norm_

K, D, STEPS = 7, 5, 10
OBJECTIVE = parse("CosFace(s=8, m=0.2) + 0.5*R_sm + 10*R_w + MHE")
SIZES = {2: [9, 4], 3: [6, 0, 7]}


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, D)).double()


def prototypes():
    torch.manual_seed(4)
    return torch.randn(K, D, dtype=torch.float64)


def batch(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(13, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(K, (13,), generator=generator)


def optimizer_of(kind, *modules):
    parameters = [p for module in modules for p in module.parameters()]
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.3, momentum=0.9, weight_decay=1e-2)
    return torch.optim.AdamW(parameters, lr=0.05)


def train(backbone, head, part, kind, max_norm, clip):
    """Losses and gradient norms of ten steps on the `part` of each batch that a process has."""
    optimizer = optimizer_of(kind, backbone, head)
    trace = []
    for step in range(STEPS):
        x, labels = (tensor[part] for tensor in batch(step))
        optimizer.zero_grad()
        loss = head(backbone(x), labels)
        loss.backward()
        norm = clip([*backbone.parameters(), head.weight], max_norm)
        optimizer.step()
        trace.append((loss.item(), float(norm)))
    return trace


def train_sharded(rank, sizes, kind, max_norm):
    backbone = network()
    head = ShardedPrototypeHead(D, K, OBJECTIVE, dtype=torch.float64)
    head.weight.data.copy_(prototypes()[slice(*head.class_range)])
    part = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    trace = train(DistributedDataParallel(backbone), head, part, kind, max_norm, clip_grad_norm_)
    return trace, [p.detach() for p in backbone.parameters()], head.weight.detach()


@pytest.mark.parametrize(("world_size", "kind", "max_norm"), [(2, "sgd", 0.7), (3, "adamw", 1e9)])
def test_ten_steps_on_uneven_ranks_equal_ten_steps_on_one(world_size, kind, max_norm, ranks):
    backbone = network()
    head = PrototypeHead(D, K, OBJECTIVE, dtype=torch.float64, block_size=None)
    head.weight.data.copy_(prototypes())
    trace = train(backbone, head, slice(None), kind, max_norm, nn.utils.clip_grad_norm_)
    assert any(norm > max_norm for _, norm in trace) == (max_norm < 1)
    results = ranks(world_size, train_sharded, SIZES[world_size], kind, max_norm)
    for found, weights, _ in results:
        torch.testing.assert_close(torch.tensor(found), torch.tensor(trace), rtol=1e-6, atol=1e-8)
        for ours, theirs in zip(weights, backbone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-9, atol=1e-11)
    rows = torch.cat([weight for *_, weight in results])
    torch.testing.assert_close(rows, head.weight.detach(), rtol=1e-9, atol=1e-11)


def norms(rank):
    """Norms before and after clipping, of a shard, a parameter that all ranks have, and both."""
    found = []
    for norm_type in (1.0, 2.0, math.inf):
        shard = ShardedPrototypeHead(D, 4, parse("NormFace(s=8)"))
        shard(torch.randn(3, D), torch.tensor([0, 1, 3]))
        shared = nn.Parameter(torch.zeros(2, 3))
        rows = torch.arange(1.0, 21.0).view(4, 5)[slice(*shard.class_range)]
        shard.weight.grad, shared.grad = rows.clone(), torch.full((2, 3), -4.0)
        before = clip_grad_norm_([shared, shard.weight], 3.0, norm_type)
        found.append((before.item(), shared.grad, shard.weight.grad))
    return found


def test_clipping_counts_the_rows_of_all_ranks_once(ranks):
    results = ranks(3, norms)
    for place, norm_type in enumerate((1.0, 2.0, math.inf)):
        whole, shared = nn.Parameter(torch.zeros(4, 5)), nn.Parameter(torch.zeros(2, 3))
        whole.grad, shared.grad = torch.arange(1.0, 21.0).view(4, 5), torch.full((2, 3), -4.0)
        expected = nn.utils.clip_grad_norm_([shared, whole], 3.0, norm_type)
        assert whole.grad is not None
        for result in results:
            assert result[place][0] == pytest.approx(expected.item())
            torch.testing.assert_close(result[place][1], shared.grad)
        torch.testing.assert_close(torch.cat([result[place][2] for result in results]), whole.grad)


def scaled_step(rank):
    """The gradients of rank 1 overflow once: whether each rank steps then and after, and its loss scale."""
    head = ShardedPrototypeHead(D, K, parse("NormFace(s=8)"))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    scaler = ShardedGradScaler("cpu", init_scale=16.0)
    moved = []
    for overflows in (True, False):
        before = head.weight.detach().clone()
        optimizer.zero_grad()
        scaler.scale(head(torch.randn(3, D), torch.arange(3))).backward()
        if overflows and rank == 1:
            head.weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        moved.append((bool((head.weight != before).any()), scaler.get_scale()))
    return moved


def test_an_overflow_on_one_rank_keeps_all_from_stepping(ranks):
    assert ranks(3, scaled_step) == [[(False, 8.0), (True, 8.0)]] * 3
