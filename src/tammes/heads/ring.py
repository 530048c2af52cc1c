"""What needs every pair of prototypes, while blocks of them pass from rank to rank round a ring."""

import math
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tammes.geometry import sphere
from tammes.geometry.energy import pair_energies, through_normalize
from tammes.geometry.margins import class_margin
from tammes.geometry.tiles import at_least_single, blocks, double
from tammes.heads.collectives import Group, Sizes, all_gather, ring, sum_over_ranks
from tammes.types import Prototypes, Scalar


def ring_energy(weight: Prototypes, power: float, sizes: Sizes, group: Group) -> Scalar:
    """`riesz_energy` of the prototypes of all ranks, of which this one has `weight`."""
    (total,) = sum_over_ranks([_Energy.apply(weight, power, sizes, group)], group)
    return total


class _Energy(torch.autograd.Function):
    """Energy of the pairs of an own and any prototype; summed over ranks it counts every ordered pair.

    What another rank counts of the same pairs is as much again: the gradient of the sum is twice the own
    energy's. It is gathered while the blocks pass, so that none of them is kept.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, power: float, sizes: Sizes, group: Group) -> Tensor:
        energy = double(weight.new_zeros(()))
        gradient = energy.new_zeros(weight.shape) if ctx.needs_input_grad[0] else None
        for passed, others in enumerate(chain([weight], ring(weight, sizes, group))):
            for rows, columns in product(blocks(len(weight)), blocks(len(others))):
                u, v = (sphere.normalize(double(x)) for x in (weight[rows], others[columns]))
                terms, slope = pair_energies(u, v, power, twin=passed == 0 and rows == columns)
                energy += terms.sum()
                if gradient is not None:
                    gradient[rows] += 2 * slope @ v
        dtype, ctx.dtype = at_least_single(weight), weight.dtype
        if gradient is not None:
            ctx.save_for_backward(through_normalize(gradient, weight.to(dtype)))
        return energy.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = ctx.saved_tensors
        return (grads[0] * gradient).to(ctx.dtype), None, None, None


@torch.no_grad()
def ring_class_margin(weight: Prototypes, sizes: Sizes, group: Group) -> Scalar:
    """`class_margin` of the prototypes of all ranks; each pair of ranks meets on one of them."""
    margins = [weight.new_full((), math.inf, dtype=at_least_single(weight))]
    if len(sizes) == 1:
        margins.append(class_margin(weight))
    for other in ring(weight, sizes, group, passes=len(sizes) // 2):
        both = torch.cat([weight, other])
        if len(both) > 1:
            margins.append(class_margin(both))
    smallest = torch.stack(margins).min()
    return all_gather(smallest[None], [1] * len(sizes), group).min()
