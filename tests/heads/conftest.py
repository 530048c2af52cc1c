"""Heads and batches to try them on."""

import pytest
import torch

from tammes import PrototypeHead
from tammes.losses import CosFace, SampleMargin, ZeroCentroid

K, D, N = 7, 5, 11


@pytest.fixture
def objective():
    """A sum of a loss, a regularizer of samples and one of prototypes."""
    return CosFace(scale=8, margin=0.2) + 0.5 * SampleMargin() + 10 * ZeroCentroid()


@pytest.fixture
def head(objective):
    """Seven classes in five dimensions."""
    torch.manual_seed(0)
    return PrototypeHead(D, K, objective)


@pytest.fixture
def embeddings():
    """Eleven vectors of random length."""
    return torch.randn(N, D, generator=torch.Generator().manual_seed(1)).requires_grad_()


@pytest.fixture
def labels():
    """Their labels, every class among them."""
    return torch.arange(N) % K
