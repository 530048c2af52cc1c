"""Gradient-norm clipping when some parameters are sharded across ranks."""

import math
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.utils.weak import WeakIdKeyDictionary

from tammes._common import checks
from tammes._common.types import Scalar
from tammes.heads._ranks.collectives import Group, reduce

SHARD_GROUPS = WeakIdKeyDictionary()
"""The process group that shards the rows of a plain parameter; heads register theirs in every forward."""


@torch.no_grad()
def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Scalar:
    """`torch.nn.utils.clip_grad_norm_` for sharded parameters. All ranks must call it together.

    The prototypes of a `ShardedPrototypeHead` and DTensor parameters, such as FSDP2's, contribute the norm
    over all their shards. Any other parameter has the same gradient on every rank and counts once. All
    gradients are scaled by the same factor. Plain tensors and DTensors of any mesh may be mixed.

    Returns the total norm before clipping.
    """
    checks.positive("max_norm", max_norm)
    if norm_type != math.inf:
        checks.positive("norm_type", norm_type)
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if not parameters:
        return torch.zeros(())
    split: dict[tuple[Group, ...], list[Tensor]] = {}
    for parameter in parameters:
        split.setdefault(_groups(parameter), []).append(parameter)
    norms = [_norm(some, norm_type, groups) for groups, some in split.items()]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0]) for norm in norms]), norm_type)
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            values = _values(parameter.grad)
            values.mul_(factor.to(values))
    return total.float()


def _groups(parameter: Any) -> tuple[Group, ...]:
    """The process groups that shard `parameter`, one per sharded mesh dimension."""
    if _is_dtensor(parameter):
        mesh, placements = parameter.device_mesh, parameter.placements
        return tuple(mesh.get_group(dim) for dim, p in enumerate(placements) if not p.is_replicate())
    group = SHARD_GROUPS.get(parameter)
    return () if group is None else (group,)


def _norm(parameters: list[Tensor], norm_type: float, groups: tuple[Group, ...]) -> Tensor:
    """Norm of the gradients over all ranks of `groups`, in float64."""
    values = [_values(_as_split(parameter)) for parameter in parameters if parameter.grad is not None]
    values = [value for value in values if value.numel()]  # a rank's shard may be empty
    norm = get_total_norm(values, norm_type).to(parameters[0].device).double()
    for group in groups:
        if norm_type == math.inf:
            norm = reduce(norm, "MAX", group)
        else:
            norm = reduce(norm**norm_type, "SUM", group) ** (1 / norm_type)
    return norm


def _as_split(parameter: Any) -> Tensor:
    """The gradient with the placements of its parameter; partial sums are reduced."""
    grad = parameter.grad
    if _is_dtensor(grad) and grad.placements != parameter.placements:
        return grad.redistribute(placements=parameter.placements)
    return grad


def _values(grad: Any) -> Tensor:
    """A view of the gradient's local values; for a sparse gradient, of its nonzeros."""
    if _is_dtensor(grad):
        grad = grad.to_local()
    return grad._values() if grad.is_sparse else grad


def _is_dtensor(tensor: Any) -> bool:
    """Whether `tensor` is a DTensor, without importing DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
