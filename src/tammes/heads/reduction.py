"""From the statistics of each rank's classes to those of all classes."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from tammes.heads.collectives import Group, once, reduce, sum_over_ranks
from tammes.losses.scores import Space
from tammes.losses.statistics import Plan, Rivals, Statistics, Targets
from tammes.types import PerSample


@dataclass(frozen=True)
class Slice:
    """Which of the k classes a rank has."""

    first: int
    last: int
    num_classes: int

    def has(self, targets: Targets) -> Bool[Tensor, "n t"]:
        """Which targets are classes of this slice."""
        return (targets >= self.first) & (targets < self.last)


def reduce_statistics(
    local: Statistics, targets: Targets, plan: Plan, own: Slice, group: Group
) -> Statistics:
    """The `Statistics` of all classes, from those of the classes that each rank has.

    Three all-reduces of a few numbers per sample: the largest similarity (MAX), the lowest class that has
    it (MIN), and in one message all that is summed: targets, rests as exponentials, prototypes.
    """
    peaks = reduce(torch.stack([local.rivals[space].value for space in plan.spaces]), "MAX", group)
    peak = dict(zip(plan.spaces, peaks, strict=True))
    holder = {space: _holder(local.rivals[space], peak[space], own) for space in plan.spaces}
    labels = reduce(torch.stack(list(holder.values())), "MIN", group)
    label = dict(zip(plan.spaces, labels, strict=True))

    shift = {(s, scale): scale * peak[s].masked_fill(peak[s] == -torch.inf, 0.0) for s, scale in plan.rests}
    parts = [local.target[space] for space in plan.spaces]
    parts += [torch.where(holder[s] == label[s], local.rivals[s].value, 0.0) for s in plan.hardest]
    parts += [torch.exp(local.rest[key] - shift[key]) for key in plan.rests]
    parts += [local.sums[space] for space in plan.sums]
    if local.target_norms is not None:
        parts.append(torch.where(own.has(targets), local.target_norms, 0.0))
    totals = iter(sum_over_ranks(parts, group))

    target: dict[Space, Tensor] = {space: next(totals) for space in plan.spaces}
    hardest = peak | {space: next(totals) for space in plan.hardest}
    return Statistics(
        targets=targets,
        num_classes=own.num_classes,
        target=target,
        rest={key: _log(next(totals), shift[key]) for key in plan.rests},
        rivals={space: Rivals(hardest[space], label[space]) for space in plan.spaces},
        sums={space: next(totals) for space in plan.sums},
        rows={space: once(rows, group) for space, rows in local.rows.items()},
        row_norms=once(local.row_norms, group),
        target_norms=None if local.target_norms is None else next(totals),
        riesz=local.riesz,
    )


def _holder(rivals: Rivals, peak: PerSample, own: Slice) -> Tensor:
    """The class of this slice that has the largest similarity of all; k where none does.

    For a row without a rival on any rank it is k on all of them, and their values add up to -inf.
    """
    holds = (rivals.value == peak) & (peak > -torch.inf)
    return torch.where(holds, rivals.label + own.first, own.num_classes)


def _log(total: PerSample, shift: PerSample) -> PerSample:
    """shift + log(total), and -inf with zero gradients where no rank had a rival."""
    some = total > 0
    return torch.where(some, shift + torch.where(some, total, 1.0).log(), -torch.inf)
