"""What needs every pair of prototypes, while blocks of them pass from rank to rank round a ring."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tammes.geometry import sphere
from tammes.geometry.energy import pair_energies, riesz_energy, through_normalize
from tammes.geometry.margins import class_margin
from tammes.geometry.tiles import at_least_single, blocks, double
from tammes.heads.collectives import Group, Sizes, all_gather, ring, sum_over_ranks
from tammes.types import Prototypes, Scalar


def ring_energy(weight: Prototypes, power: float, sizes: Sizes, group: Group) -> Scalar:
    """`riesz_energy` of the prototypes of all ranks, of which this one has `weight`."""
    energy = _AcrossRanks.apply(weight, power, sizes, group)
    if len(weight) > 1:
        energy = energy + riesz_energy(weight, power)
    (total,) = sum_over_ranks([energy], group)
    return total


class _AcrossRanks(torch.autograd.Function):
    """Energy of the pairs of an own and another rank's prototype.

    The other rank counts the same pairs, so that the gradient of the sum is twice the own energy's. It is
    gathered while the blocks pass: none of them is kept.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, power: float, sizes: Sizes, group: Group) -> Tensor:
        energy = double(weight.new_zeros(()))
        gradient = torch.zeros_like(double(weight)) if ctx.needs_input_grad[0] else None
        for other in ring(weight, sizes, group):
            for rows in blocks(len(weight)):
                u = sphere.normalize(double(weight[rows]))
                for columns in blocks(len(other)):
                    v = sphere.normalize(double(other[columns]))
                    terms, slope = pair_energies(u, v, power, twin=False)
                    energy += terms.sum()
                    if gradient is not None:
                        gradient[rows] += 2 * slope @ v
        if gradient is not None:
            ctx.save_for_backward(through_normalize(gradient, weight))
        return energy.to(at_least_single(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = ctx.saved_tensors
        return grads[0].to(gradient.dtype) * gradient, None, None, None


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
