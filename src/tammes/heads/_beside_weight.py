"""The state of a head besides its prototypes."""

import torch
from torch import nn


@torch.no_grad()
def copy_beside_weight(head: nn.Module, other: nn.Module) -> None:
    """Copy class sampling, running statistics and learned scales, the same on every rank, to `other`."""
    for name in ("sampler", "running", "scales"):
        own, others = getattr(head, name), getattr(other, name)
        if own is not None and others is not None:
            others.load_state_dict(own.state_dict())
