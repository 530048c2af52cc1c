"""Logits of any form and gradients, a few rows at a time, in blocks that are kept or recomputed."""

import pytest
import torch

from tammes import PrototypeHead
from tammes.heads import prototype
from tammes.heads._stream import backward, blocks, products
from tammes.losses import MixedLabels

K, D, N = 11, 4, 9
OBJECTIVES = [
    "CurricularFace(s=8)",
    "MVSoftmax(s=Learnable(6), m=0.2)",
    "Circle(s=6)",
    "VS(normalize=True, s=Learnable(5))",
    "BalancedSoftmax + CurricularFace(s=8, m=0.3)",
]


def outcome(head, z, labels):
    loss = head(z, labels)
    return [loss, *torch.autograd.grad(loss, (z, *head.parameters()))]


@pytest.mark.filterwarnings("ignore:.*classes:UserWarning")
@pytest.mark.parametrize("centers", [1, 2])
@pytest.mark.parametrize("text", OBJECTIVES)
def test_loss_and_gradients_are_those_of_whole_matrices(text, centers, monkeypatch):
    monkeypatch.setattr(blocks, "ROW_TILE_ELEMENTS", 8)  # two to four rows
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(N, D, generator=generator, dtype=torch.float64).requires_grad_()
    hard = torch.randint(K, (N,), generator=generator)
    options = {"class_counts": range(1, K + 1), "centers": centers, "dtype": torch.float64}
    for labels in (hard, MixedLabels(hard, hard.roll(1), 0.3)):
        torch.manual_seed(0)
        expected = outcome(PrototypeHead(D, K, text, block_size=None, **options), z, labels)
        for kept in (2**20, 300, 0):  # bytes: all blocks, some, none
            monkeypatch.setattr(prototype, "LEAN_BUFFER_BYTES", kept)
            torch.manual_seed(0)
            head = PrototypeHead(D, K, text, block_size=2, **options)
            torch.testing.assert_close(outcome(head, z, labels), expected)


@pytest.mark.parametrize("text", ["CosFace(s=8, m=0.2)", "CE + R_sm"])
@pytest.mark.parametrize("rows", [1, 3, K])
def test_prototype_gradients_are_tangential_tile_by_tile(text, rows, monkeypatch):
    monkeypatch.setattr(backward, "TILE_ELEMENTS", rows * D if rows < K else K * D)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(N, D, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(K, (N,), generator=generator)
    torch.manual_seed(0)
    head = PrototypeHead(D, K, text, dtype=torch.float64)
    whole = PrototypeHead(D, K, text, block_size=None, dtype=torch.float64)
    whole.load_state_dict(head.state_dict())
    torch.testing.assert_close(outcome(head, z, labels), outcome(whole, z, labels))


@pytest.mark.filterwarnings("ignore:.*classes:UserWarning")
@pytest.mark.parametrize("text", ["CosFace(s=8, m=0.2)", "CE + R_sm"])
@pytest.mark.parametrize("centers", [1, 3])
@pytest.mark.parametrize("columns", [1, 4, 10])
def test_a_product_may_be_computed_a_few_columns_at_a_time(text, centers, columns, monkeypatch):
    monkeypatch.setattr(products, "PRODUCT_COLUMNS", columns)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(N, D, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(K, (N,), generator=generator)
    torch.manual_seed(0)
    head = PrototypeHead(D, K, text, centers=centers, dtype=torch.float64)
    whole = PrototypeHead(D, K, text, centers=centers, block_size=None, dtype=torch.float64)
    whole.load_state_dict(head.state_dict())
    torch.testing.assert_close(outcome(head, z, labels), outcome(whole, z, labels))
