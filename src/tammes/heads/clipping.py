"""Clipping gradients by their norm where some parameters are split over ranks."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.utils.weak import WeakIdKeyDictionary

from tammes import checks
from tammes.heads.collectives import Group, reduce
from tammes.types import Scalar

SHARD_GROUPS = WeakIdKeyDictionary()
"""Over which process group the rows of a parameter are split; heads enter theirs in every forward."""


@torch.no_grad()
def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Scalar:
    """`torch.nn.utils.clip_grad_norm_` that counts the shards of all ranks; all must call it together.

    The prototypes of a `ShardedPrototypeHead` enter with the norm of the rows of all ranks, every other
    parameter, whose gradient is the same on each rank, with its own: all scale by the same factor.

    Returns the norm before clipping.
    """
    checks.positive("max_norm", max_norm)
    if norm_type != math.inf:
        checks.positive("norm_type", norm_type)
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    split: dict[Group, list[Tensor]] = {}
    for parameter in parameters:
        split.setdefault(SHARD_GROUPS.get(parameter), []).append(parameter)
    norms = [_norm(some, norm_type, group) for group, some in split.items()]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0]) for norm in norms]), norm_type)
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for grad in _gradients(parameters):
        grad.mul_(factor.to(grad))
    return total.float()


def _norm(parameters: list[Tensor], norm_type: float, group: Any) -> Tensor:
    """Norm of the gradients, in float64; over all ranks of `group` if there is one."""
    own = get_total_norm(_gradients(parameters), norm_type).to(parameters[0].device).double()
    if group is None:
        return own
    if norm_type == math.inf:
        return reduce(own, "MAX", group)
    return reduce(own**norm_type, "SUM", group) ** (1 / norm_type)


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    """The numbers of each gradient, sparse ones' too, in the memory of the gradient; none of empty slices."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [grad._values() if grad.is_sparse else grad for grad in grads if grad.numel()]
