"""Riesz energy of prototypes: repulsion whose minimisers tend to the best packing (paper, eq. 2.4)."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from tammes import checks
from tammes.geometry import sphere
from tammes.geometry.tiles import at_least_single, blocks, double
from tammes.types import Prototypes, Scalar


def riesz_energy(weight: Prototypes, power: float) -> Scalar:
    r"""Riesz t-energy of the unit prototypes, and their logarithmic energy at t = 0.

    .. math::
        E_t = \sum_{i \ne j} \|w_i - w_j\|^{-t}, \qquad E_0 = \sum_{i \ne j} -\log \|w_i - w_j\|

    Differentiable once. Pairs are visited tile by tile, and the gradient is gathered on the same walk, so
    that memory is two copies of the weight and a few tiles. Arithmetic is float64. Prototypes nearer than
    rounding (7e-7 rad for d = 512) count as coincident: the energy is infinite, and they do not push each
    other. A zero prototype counts as orthogonal to every other.

    Args:
        weight: the prototypes, of any length.
        power: t >= 0. A large one overflows where prototypes are near, in float32 above 3.4e38.

    >>> riesz_energy(torch.tensor([[1.0, 0.0], [-3.0, 0.0]]), power=1.0)
    tensor(1.)
    """
    checks.check_prototypes(weight)
    if checks.finite("power", power) < 0:
        raise ValueError(f"power must be at least 0 (0 is the logarithmic energy), got {power}.")
    return _RieszEnergy.apply(weight, power)


class _RieszEnergy(torch.autograd.Function):
    """Autograd would keep every tile for the way back; this keeps their sum, the gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, power: float) -> Tensor:
        energy = double(weight.new_zeros(()))
        gradient = energy.new_zeros(weight.shape) if ctx.needs_input_grad[0] else None
        for rows in blocks(len(weight)):
            u = sphere.normalize(double(weight[rows]))
            for columns in blocks(len(weight), start=rows.start):
                twin = columns == rows
                v = u if twin else sphere.normalize(double(weight[columns]))
                terms, slope = pair_energies(u, v, power, twin)
                energy += terms.sum() * (1 if twin else 2)
                if gradient is not None:
                    gradient[rows] += 2 * slope @ v
                    if not twin:
                        gradient[columns] += 2 * slope.T @ u
        if gradient is not None:
            ctx.save_for_backward(through_normalize(gradient, weight))
        return energy.to(at_least_single(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        (gradient,) = ctx.saved_tensors
        return upstream.to(gradient.dtype) * gradient, None


def pair_energies(
    u: Float[Tensor, "a d"], v: Float[Tensor, "b d"], power: float, twin: bool
) -> tuple[Float[Tensor, "a b"], Float[Tensor, "a b"]]:
    """Energy of each pair of unit rows, and its derivative by their cosine; `twin`: no row with itself."""
    square = 2 - 2 * u @ v.T
    coincident = square <= 4 * (u.shape[1] + 8) * torch.finfo(u.dtype).eps
    if twin:
        coincident.fill_diagonal_(True)
    square.masked_fill_(coincident, math.inf)
    if power:
        terms = square ** (-power / 2)
        slope = power * terms / square
    else:
        terms, slope = -square.log() / 2, 1 / square
    terms.masked_fill_(coincident, math.inf)
    if twin:
        terms.fill_diagonal_(0.0)
    return terms, slope


def through_normalize(gradient: Prototypes, weight: Prototypes) -> Prototypes:
    """The gradient by the prototypes from that by their unit vectors; single precision at the least."""
    result = torch.empty_like(weight, dtype=at_least_single(weight))
    for rows in blocks(len(weight)):
        raw = double(weight[rows])
        result[rows] = (sphere.tangent(sphere.normalize(raw), gradient[rows]) / sphere.safe_norm(raw)).to(
            result
        )
    return result
