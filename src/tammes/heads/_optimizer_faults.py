"""What keeps an optimizer from training a head."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def group_of(parameter: Tensor, optimizer: Optimizer) -> dict[str, Any] | None:
    """The parameter group that holds `parameter`, if there is one."""
    return next((g for g in optimizer.param_groups if any(parameter is p for p in g["params"])), None)


def optimizer_faults(
    weight: Tensor, scales: nn.ParameterDict | None, optimizer: Optimizer, sampled: bool
) -> list[str]:
    """One line for each reason why `optimizer` cannot train the prototypes and the learned scales."""
    group, faults = group_of(weight, optimizer), []
    if weight.requires_grad and group is None:
        faults.append(
            "The optimizer does not hold the head's prototypes, so they will not be trained. "
            "Add them: optimizer.add_param_group(head.param_groups(lr=...)[0])."
        )
    forgotten = [name for name, scale in (scales or {}).items() if group_of(scale, optimizer) is None]
    if forgotten:
        faults.append(
            f"The optimizer does not hold the head's learned scales ({', '.join(forgotten)}). Build it from "
            "head.param_groups()."
        )
    fault = None if group is None or not sampled else sparse_fault(optimizer, group)
    return (
        faults if fault is None else [*faults, f"{fault} Use tammes.heads.RowSGD or tammes.heads.RowAdamW."]
    )


def sparse_fault(optimizer: Optimizer, group: dict[str, Any]) -> str | None:
    """Why `optimizer` cannot handle sparse gradients of a parameter in `group`; None if it can.

    Optimizers from outside `torch.optim` are trusted.
    """
    name = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("torch.optim"):
        return None
    if not isinstance(optimizer, torch.optim.SGD | torch.optim.Adagrad | torch.optim.SparseAdam):
        return f"{name} does not support sparse gradients, which a head with sample_rate produces."
    if group.get("weight_decay"):
        return f"{name} with weight_decay={group['weight_decay']:g} does not support sparse gradients."
    if group.get("momentum"):
        return (
            f"{name} with momentum={group['momentum']:g} keeps moving prototypes sampled in earlier steps, "
            "although they are not in the sparse gradient."
        )
    return None
