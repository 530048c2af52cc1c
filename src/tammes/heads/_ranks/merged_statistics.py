"""Merge the statistics of each rank's classes into those of all classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from tammes.heads._ranks.collectives import (
    Group,
    first_order_only,
    merge_tables,
    once,
    start_sum_over_ranks,
)
from tammes.losses._engine.plan import Plan, Targets
from tammes.losses._engine.rival_logits import RivalLogits
from tammes.losses._engine.statistics import Rivals, Statistics


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

    All numbers per sample travel in one table. Sums over prototypes, if a term reads some, are all-reduced
    meanwhile.
    """
    over_prototypes = [*local.sums.values()] + ([] if local.weight_sum is None else [local.weight_sum])
    arrive = start_sum_over_ranks(over_prototypes, group) if over_prototypes else list
    sums = [*(local.target[space] for space in plan.spaces), *local.rival_sums.values()]
    if local.target_norms is not None:
        sums.append(torch.where(own.has(targets), local.target_norms, 0.0))
    rests = [local.rest[key] for key in plan.rests]
    rivals = [local.rivals[space] for space in plan.spaces]
    merged, labels = _merged(sums, rests, rivals, own, group)
    numbers, totals, labels = iter(merged), iter(arrive()), iter(labels)
    return Statistics(
        targets=targets,
        num_classes=own.num_classes,
        target={space: next(numbers) for space in plan.spaces},
        rival_sums={which: next(numbers) for which in local.rival_sums},
        target_norms=None if local.target_norms is None else next(numbers),
        rest={key: next(numbers) for key in plan.rests},
        rivals={space: Rivals(next(numbers), next(labels)) for space in plan.spaces},
        sums={which: next(totals) for which in local.sums},
        rows={space: once(rows, group) for space, rows in local.rows.items()},
        row_norms=once(local.row_norms, group),
        riesz=local.riesz,
        class_weight=plan.class_weight,
        weight_sum=None if local.weight_sum is None else next(totals),
        logits={key: _once(logits, group) for key, logits in plan.logits.items()},
        noise=plan.noise,
        states=plan.states,
    )


def _merged(
    sums: list[Tensor], rests: list[Tensor], rivals: list[Rivals], own: Slice, group: Group
) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Sums, log-sum-exps and largest values over all ranks, and the classes that attain the latter."""
    statistics = [*sums, *rests, *(rival.value for rival in rivals)]
    columns = [values if values.ndim == 2 else values[:, None] for values in statistics]
    widths = [part.shape[1] for part in columns]
    kinds = sum(widths[: len(sums)]), sum(widths[len(sums) : -len(rivals)]), len(rivals)
    labels = torch.stack([rival.label + own.first for rival in rivals], 1)
    merged, labels = _Merged.apply(torch.cat(columns, 1), labels, kinds, group)
    pieces = zip(merged.split(widths, 1), statistics, strict=True)
    return [piece.view(values.shape) for piece, values in pieces], labels.unbind(1)


class _Merged(torch.autograd.Function):
    """A table of numbers per sample of each rank's classes, and the labels of its rivals, as those of all.

    `kinds` are the widths of its parts: sums, log-sum-exps, largest values. The gradient of a number of this
    rank's classes is that of the number it enters times the derivative.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, labels: Tensor, kinds: Sequence[int], group: Group
    ) -> tuple[Tensor, Tensor]:
        merged, winners = merge_tables((table, labels), partial(_merge, kinds), group)
        ctx.save_for_backward(table, merged, labels == winners)
        ctx.mark_non_differentiable(winners)
        ctx.set_materialize_grads(False)
        ctx.kinds = kinds
        return merged, winners

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        table, merged, holds = ctx.saved_tensors
        (_, rest, _), (_, total, _) = (x.split(ctx.kinds, 1) for x in (table, merged))
        of_sum, of_total, of_value = grads[0].split(ctx.kinds, 1)
        of_rest = torch.where(total == -torch.inf, 0.0, of_total * torch.exp(rest - total))
        return torch.cat([of_sum, of_rest, torch.where(holds, of_value, 0.0)], 1), None, None, None


def _merge(kinds: Sequence[int], table: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The tables (ranks, n, c) of all ranks as one; of equal values, the first rank has the lowest class."""
    sums, rests, values = table.split(kinds, 2)
    value, rank = values.max(0)
    label = labels.gather(0, rank[None]).squeeze(0)
    return torch.cat([sums.sum(0), torch.logsumexp(rests, 0), value], 1), label


def _once(logits: RivalLogits, group: Group) -> RivalLogits:
    """Logits for a computation that every rank repeats."""
    scale = logits.scale
    return replace(logits, scale=once(scale, group)) if isinstance(scale, Tensor) else logits
