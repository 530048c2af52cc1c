"""Learned and adaptive scales in a sharded head: those of one process, and the same on every rank."""

import pytest
import torch

from tammes.heads import PrototypeHead, ShardedPrototypeHead

D, K, N = 4, 7, 10
TEXTS = [
    "CosFace(s=Learnable(6), m=0.2) + 0.5*VS(normalize=True, s=Learnable(4)) + CE",
    "MVSoftmax(s=Learnable(6)) + 0.5*R_sm",
    "LMSoftmax(s=Learnable(6), reduction='lse')",
    "CosFace(s=Learnable(6), m=0.2, label_smoothing=0.1)",
    "AdaCos",
]
KINDS = [{}, {"block_size": 2}]
COUNTS = list(range(1, K + 1))

pytestmark = pytest.mark.filterwarnings("ignore:.*classes:UserWarning")


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(N, D, generator=generator, dtype=torch.float64)
    return z, torch.randint(K, (N,), generator=generator)


def trained(head, rows):
    """Losses and scales of a few steps, on the given rows of each batch."""
    first, last = head.class_range
    whole = torch.randn(K, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    head.weight.data.copy_(whole[first:last])
    optimizer = torch.optim.SGD(head.param_groups(), lr=0.5)
    found = []
    for seed in range(3):
        z, labels = batch(seed)
        loss = head(z[rows], labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scales = [head.logit_scale, *(head.scales or {}).values()]
        found += [loss.item(), *(torch.as_tensor(scale).item() for scale in scales)]
    return found


def walk(rank):
    rows = [slice(0, 4), slice(4, 4), slice(4, 10)][rank]
    options = {"class_counts": COUNTS, "dtype": torch.float64}
    heads = [ShardedPrototypeHead(D, K, text, **options, **kind) for text in TEXTS for kind in KINDS]
    return [trained(head, rows) for head in heads]


def test_scales_are_those_of_one_process(ranks):
    options = {"class_counts": COUNTS, "dtype": torch.float64, "block_size": None}
    heads = [PrototypeHead(D, K, text, **options) for text in TEXTS for _ in KINDS]
    expected = [trained(head, slice(0, N)) for head in heads]
    for found in ranks(3, walk):
        for own, right in zip(found, expected, strict=True):
            assert own == pytest.approx(right, rel=1e-9)
