"""Functions of all pairs of prototypes: blocks of prototypes are passed around a ring of ranks."""

import math
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor

from tammes._common.row_blocks import at_least_single, double, row_slices, same_class
from tammes._common.types import ClassPrototypes, Scalar
from tammes.geometry import sphere
from tammes.geometry._pair_energies import pair_energies, through_normalize
from tammes.geometry.margins import class_margin
from tammes.heads._ranks.collectives import Group, Sizes, all_gather, first_order_only, ring, sum_over_ranks


def ring_energy(weight: ClassPrototypes, power: float, sizes: Sizes, group: Group) -> Scalar:
    """`class_energy` of the prototypes of all ranks; `weight` is this rank's part, `sizes` are in classes."""
    rows, centers = weight.reshape(-1, weight.shape[-1]), weight.shape[1:-1].numel()
    sizes = [size * centers for size in sizes]
    (total,) = sum_over_ranks([_Energy.apply(rows, power, sizes, centers, group)], group)
    return total / centers**2


class _Energy(torch.autograd.Function):
    """Energy of all pairs of a local and any other prototype; summed over ranks, of all ordered pairs.

    The other ranks' terms of the same pairs contribute equally, so the gradient of the sum is twice that of
    the local energy. It is accumulated as blocks pass; no block is kept.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, power: float, sizes: Sizes, centers: int, group: Group) -> Tensor:
        energy = double(weight.new_zeros(()))
        gradient = energy.new_zeros(weight.shape) if ctx.needs_input_grad[0] else None
        for passed, others in enumerate(chain([weight], ring(weight, sizes, group))):
            for rows, columns in product(row_slices(len(weight)), row_slices(len(others))):
                u, v = (sphere.normalize(double(x)) for x in (weight[rows], others[columns]))
                same = None if passed else same_class(rows, columns, centers, like=u)
                terms, slope = pair_energies(u, v, power, same)
                energy += terms.sum()
                if gradient is not None:
                    gradient[rows] += 2 * slope @ v
        dtype, ctx.dtype = at_least_single(weight), weight.dtype
        if gradient is not None:
            ctx.save_for_backward(through_normalize(gradient, weight.to(dtype)))
        return energy.to(dtype)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = ctx.saved_tensors
        return (grads[0] * gradient).to(ctx.dtype), None, None, None, None


@torch.no_grad()
def ring_class_margin(weight: ClassPrototypes, sizes: Sizes, group: Group) -> Scalar:
    """`class_margin` of the prototypes of all ranks. One rank of each pair compares their prototypes."""
    margins = [weight.new_full((), math.inf, dtype=at_least_single(weight))]
    if len(sizes) == 1:
        margins.append(class_margin(weight))
    for other in ring(weight, sizes, group, passes=len(sizes) // 2):
        both = torch.cat([weight, other])
        if len(both) > 1:
            margins.append(class_margin(both))
    smallest = torch.stack(margins).min()
    return all_gather(smallest[None], [1] * len(sizes), group).min()
