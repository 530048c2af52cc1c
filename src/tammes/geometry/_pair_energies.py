"""Energies of pairs of unit vectors and their gradients, for one tile of pairs."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tammes._common.row_blocks import at_least_single, double, row_slices
from tammes._common.types import Prototypes
from tammes.geometry.sphere import normalize, safe_norm, tangent


def pair_energies(
    u: Float[Tensor, "a d"], v: Float[Tensor, "b d"], power: float, skipped: Bool[Tensor, "a b"] | None
) -> tuple[Float[Tensor, "a b"], Float[Tensor, "a b"]]:
    """Energy of each pair of unit rows and its derivative w.r.t. their cosine; 0 for `skipped` pairs."""
    square = 2 - 2 * u @ v.T
    coincident = square <= 4 * (u.shape[1] + 8) * torch.finfo(u.dtype).eps
    if skipped is not None:
        coincident |= skipped
    square.masked_fill_(coincident, math.inf)
    if power:
        terms = square ** (-power / 2)
        slope = power * terms / square
    else:
        terms, slope = -square.log() / 2, 1 / square
    terms.masked_fill_(coincident, math.inf)
    if skipped is not None:
        terms.masked_fill_(skipped, 0.0)
    return terms, slope


def through_normalize(gradient: Prototypes, weight: Prototypes) -> Prototypes:
    """Backpropagate a gradient w.r.t. the unit vectors to the prototypes; at least float32."""
    result = torch.empty_like(weight, dtype=at_least_single(weight))
    for rows in row_slices(len(weight)):
        raw = double(weight[rows])
        result[rows] = (tangent(normalize(raw), gradient[rows]) / safe_norm(raw)).to(result)
    return result
