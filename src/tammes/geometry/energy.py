"""Riesz energy of prototypes, whose minimizers tend to optimal packings (paper, eq. 2.4)."""

from typing import Any

import torch
from torch import Tensor

from tammes._common import checks, tensor_checks
from tammes._common.autograd import transforming, vector_jacobian
from tammes._common.row_blocks import at_least_single, double, row_slices, same_class
from tammes._common.types import ClassPrototypes, Prototypes, Scalar
from tammes.geometry._pair_energies import pair_energies, through_normalize
from tammes.geometry.sphere import normalize


def riesz_energy(weight: ClassPrototypes, power: float) -> Scalar:
    r"""Riesz t-energy of the normalized prototypes; t = 0 gives the logarithmic energy.

    .. math::
        E_t = \sum_{i \ne j} \|w_i - w_j\|^{-t}, \qquad E_0 = \sum_{i \ne j} -\log \|w_i - w_j\|

    Pairs are processed in tiles and the gradient is accumulated in the same pass, so memory is two copies of
    the weight and a few tiles. Second derivatives hold all pairs at once. Computed in float64. Prototypes
    closer than rounding error (7e-7 rad for d = 512) count as coincident: the energy is infinite, and they
    do not repel each other. A zero prototype counts as orthogonal to all others. With several prototypes per
    class, (k, c, d), the sum is over the pairs of different classes.

    Args:
        weight: Prototypes of any norm, (k, d) or (k, c, d).
        power: Exponent t >= 0. Large values overflow for close prototypes, in float32 above 3.4e38.

    >>> riesz_energy(torch.tensor([[1.0, 0.0], [-3.0, 0.0]]), power=1.0)
    tensor(1.)
    """
    _, centers, d = tensor_checks.check_class_prototypes(weight)
    if checks.finite("power", power) < 0:
        raise ValueError(f"power must be at least 0 (0 is the logarithmic energy), got {power}.")
    rows = weight.reshape(-1, d)
    return _whole_energy(rows, power, centers) if transforming() else _RieszEnergy.apply(rows, power, centers)


def _whole_energy(weight: Prototypes, power: float, centers: int) -> Scalar:
    """`riesz_energy` from all pairs at once, with operations that autograd can differentiate."""
    unit = normalize(double(weight))
    every = slice(0, len(unit))
    terms, _ = pair_energies(unit, unit, power, same_class(every, every, centers, like=unit))
    return terms.sum().to(at_least_single(weight))


class _RieszEnergy(torch.autograd.Function):
    """Autograd would keep every tile for the backward pass; this keeps only the gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, power: float, centers: int) -> Tensor:
        energy = double(weight.new_zeros(()))
        gradient = energy.new_zeros(weight.shape) if ctx.needs_input_grad[0] else None
        for rows in row_slices(len(weight)):
            u = normalize(double(weight[rows]))
            for columns in row_slices(len(weight), start=rows.start):
                twin = columns == rows
                v = u if twin else normalize(double(weight[columns]))
                terms, slope = pair_energies(u, v, power, same_class(rows, columns, centers, like=u))
                energy += terms.sum() * (1 if twin else 2)
                if gradient is not None:
                    gradient[rows] += 2 * slope @ v
                    if not twin:
                        gradient[columns] += 2 * slope.T @ u
        if gradient is not None:
            ctx.save_for_backward(weight, through_normalize(gradient, weight))
        ctx.power, ctx.centers = power, centers
        return energy.to(at_least_single(weight))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None]:  # pyright: ignore
        weight, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True; otherwise the result is linear in `upstream`
            (again,) = vector_jacobian(
                lambda w: [_whole_energy(w, ctx.power, ctx.centers)], [weight], [upstream]
            )
            return again, None, None
        return upstream.to(gradient.dtype) * gradient, None, None
