"""Points on the unit sphere: normalization, rotations, angles and tangents."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common import tensor_checks
from tammes._common.types import PerSample


def safe_norm(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows 1"]:
    """Euclidean norm of each row, or 1 for a zero row, so that it is always safe to divide by.

    Accurate over the whole range of floating point, although the squares of numbers above 1.8e19 overflow in
    float32 and those of numbers below 1e-19 underflow. A row of denormal entries counts as zero: they have
    lost their precision, and the inverse norm could overflow.
    """
    if x.is_cuda and x.dtype != torch.float64:  # checking would synchronize; float64 sums are free on GPUs
        norm = _wide_norm(x)
    elif not tensor_checks.readable(x):
        norm = _scaled_norm(x)
    else:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        safest = math.sqrt(_smallest_norm(x.dtype))
        if not norm.numel() or _within(norm, safest, math.inf):
            return norm
        # Decide row by row: a norm must not depend on other rows, or equal prototypes would not tie.
        norm = torch.where((norm > safest) & (norm < math.inf), norm, _scaled_norm(x))
    return torch.where(norm > _smallest_norm(x.dtype), norm, 1.0)


def _within(values: Tensor, low: float, high: float) -> bool:
    """Whether all lie between `low` and `high`."""
    smallest, largest = (x.item() for x in torch.aminmax(values.detach()))
    return low < smallest and largest < high


def _smallest_norm(dtype: torch.dtype) -> float:
    """Below this norm the relevant entries are denormal; 0 for half precision, whose range is too small."""
    limits = torch.finfo(dtype)
    return limits.tiny / limits.eps if limits.bits >= 32 else 0.0


def _scaled_norm(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows 1"]:
    """The norm of the row divided by its largest entry, so that no square overflows."""
    peak = x.detach().abs().amax(-1, keepdim=True)
    peak = torch.where(peak > 0, peak, 1.0)
    return peak * torch.linalg.vector_norm(x / peak, dim=-1, keepdim=True)


def _wide_norm(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows 1"]:
    """The same by sums in float64, whose range holds the square of any float32."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64).to(x.dtype)


def normalize(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """Each row scaled to unit length.

    A zero row has no direction: it stays zero and passes its gradient through unscaled. An epsilon in the
    denominator would multiply that gradient by 1e12.

    >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return x / safe_norm(x)


def randomly_rotated(points: Float[Tensor, "k d"], generator: torch.Generator) -> Float[Tensor, "k d"]:
    """`points` after a random rotation, which preserves all angles between them.

    The Q factor of a Gaussian matrix is uniform over the orthogonal group once R has a positive diagonal.
    """
    d = points.shape[-1]
    q, r = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=generator))
    return points @ (q * r.diagonal().sign()).to(points)


def angle(u: Float[Tensor, "*rows d"], v: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows"]:
    r"""Angle in radians between rows of `u` and `v`, accurate near 0 and near pi.

    Uses :math:`2 \operatorname{atan2}(|u - v|, |u + v|)` of the unit vectors. The arc cosine of a float32
    inner product cannot distinguish angles below 0.02 degrees from 0.

    >>> angle(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1e-6]))
    tensor(1.0000e-06)
    """
    u, v = normalize(u), normalize(v)
    apart = torch.linalg.vector_norm(u - v, dim=-1)
    together = torch.linalg.vector_norm(u + v, dim=-1)
    return 2 * torch.atan2(apart, together)


def tangent(point: Float[Tensor, "*rows d"], vector: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """Projection of `vector` onto the tangent space at the unit vector `point`."""
    return vector - (vector * point).sum(-1, keepdim=True) * point


def sine(cosine: PerSample) -> PerSample:
    r""":math:`\sqrt{1 - c^2}` of a cosine c, with subgradient 0 at c = -1 and 1.

    The one-sided derivative there is infinite and is multiplied by a zero tangent on the way to the
    embedding. The limit of the product is 0, whereas plain autograd returns NaN.
    """
    square = (1 - cosine) * (1 + cosine)
    inside = square > 0
    return torch.where(inside, torch.where(inside, square, 1.0).sqrt(), 0.0)


def arc(cosine: PerSample) -> PerSample:
    """The angle in [0, pi] of a cosine, with finite gradients at both ends."""
    return torch.atan2(sine(cosine), cosine)
