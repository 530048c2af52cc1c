"""Merge the statistics of each rank's classes into those of all classes."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from tammes._common.types import PerSample
from tammes.heads._ranks.collectives import Group, once, reduce, start_reduce, start_sum_over_ranks
from tammes.losses._engine.plan import Plan, Targets
from tammes.losses._engine.rival_logits import RivalLogits
from tammes.losses._engine.statistics import Rivals, Statistics
from tammes.losses.scores import Space


@dataclass(frozen=True)
class Slice:
    """The range of classes on one rank."""

    first: int
    last: int
    num_classes: int

    @property
    def rows(self) -> slice:
        """Their rows in a table of all classes."""
        return slice(self.first, self.last)

    def has(self, targets: Targets) -> Bool[Tensor, "n t"]:
        """Which targets lie in this range."""
        return (targets >= self.first) & (targets < self.last)


def class_slice(num_classes: int, rank: int, world_size: int) -> tuple[int, int]:
    """Half-open range of a rank's classes, split as `torch.chunk` does; the last ranks may have none.

    >>> [class_slice(7, rank, 3) for rank in range(3)], class_slice(2, 2, 3)
    ([(0, 3), (3, 6), (6, 7)], (2, 2))
    """
    width = -(-num_classes // world_size)
    return min(rank * width, num_classes), min((rank + 1) * width, num_classes)


def reduce_statistics(
    local: Statistics, targets: Targets, plan: Plan, own: Slice, group: Group
) -> Statistics:
    """Combine the `Statistics` of each rank's classes into those of all classes.

    Takes three all-reduces of a few numbers per sample: the largest similarities and rests (MAX), then
    together one message with all sums (targets, exponentials of the rests, prototypes) and the lowest class
    that attains the largest similarity (MIN).
    """
    values = [local.rivals[space].value for space in plan.spaces] + [local.rest[key] for key in plan.rests]
    largest = iter(_maxima(values, group))
    peak = {space: next(largest) for space in plan.spaces}
    shift = {key: _finite(next(largest)) for key in plan.rests}
    parts = [local.target[space] for space in plan.spaces]
    parts += [torch.exp(local.rest[key] - shift[key]) for key in plan.rests]
    parts += [*local.sums.values(), *local.rival_sums.values()]
    if local.target_norms is not None:
        parts.append(torch.where(own.has(targets), local.target_norms, 0.0))
    if local.weight_sum is not None:
        parts.append(local.weight_sum)
    sums = start_sum_over_ranks(parts, group)
    holder = {space: _holder(local.rivals[space], peak[space], own) for space in plan.spaces}
    lowest = start_reduce(torch.stack(list(holder.values())), "MIN", group)
    totals = iter(sums())
    label = dict(zip(plan.spaces, lowest(), strict=True))

    target: dict[Space, Tensor] = {space: next(totals) for space in plan.spaces}
    hardest = dict(peak)
    for space in plan.hardest:
        here = (holder[space] == label[space]) & own.has(label[space])
        hardest[space] = torch.where(here, local.rivals[space].value, peak[space])  # equal; for its gradient
    return Statistics(
        targets=targets,
        num_classes=own.num_classes,
        target=target,
        rest={key: _log(next(totals), shift[key]) for key in plan.rests},
        rivals={space: Rivals(hardest[space], label[space]) for space in plan.spaces},
        sums={which: next(totals) for which in local.sums},
        rival_sums={which: next(totals) for which in local.rival_sums},
        rows={space: once(rows, group) for space, rows in local.rows.items()},
        row_norms=once(local.row_norms, group),
        target_norms=None if local.target_norms is None else next(totals),
        riesz=local.riesz,
        class_weight=plan.class_weight,
        weight_sum=None if local.weight_sum is None else next(totals),
        logits={key: _once(logits, group) for key, logits in plan.logits.items()},
        noise=plan.noise,
        states=plan.states,
    )


def _maxima(values: list[Tensor], group: Group) -> list[Tensor]:
    """The largest value over ranks of each entry, all in one message; without gradients."""
    flat = reduce(torch.cat([value.detach().reshape(-1) for value in values]), "MAX", group)
    pieces = flat.split([value.numel() for value in values])
    return [piece.view(value.shape) for piece, value in zip(pieces, values, strict=True)]


def _once(logits: RivalLogits, group: Group) -> RivalLogits:
    """Logits for a computation that every rank repeats."""
    scale = logits.scale
    return replace(logits, scale=once(scale, group)) if isinstance(scale, Tensor) else logits


def _finite(values: Tensor) -> Tensor:
    return values.masked_fill(values == -torch.inf, 0.0)


def _holder(rivals: Rivals, peak: PerSample, own: Slice) -> Tensor:
    """The local class that attains the largest similarity over all ranks; k if none does."""
    holds = (rivals.value == peak) & (peak > -torch.inf)
    return torch.where(holds, rivals.label + own.first, own.num_classes)


def _log(total: PerSample, shift: PerSample) -> PerSample:
    """shift + log(total); -inf with zero gradients where no rank has a rival."""
    some = total > 0
    return torch.where(some, shift + torch.where(some, total, 1.0).log(), -torch.inf)
