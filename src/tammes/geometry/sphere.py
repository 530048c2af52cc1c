"""Points on the unit sphere: normalising, angles, steps along great circles."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.types import PerSample


def safe_norm(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows 1"]:
    """Euclidean norm of each row, and 1 for a zero row, so that dividing by it is always finite."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(norm > 0, norm, 1.0)


def normalize(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """Each row scaled to unit length.

    A zero row has no direction: it stays zero and passes its gradient on unscaled, where an epsilon in
    the denominator would multiply it by 1e12.

    >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return x / safe_norm(x)


def turned(points: Float[Tensor, "k d"], generator: torch.Generator) -> Float[Tensor, "k d"]:
    """`points` in a random orientation; all angles stay.

    The Q of a Gaussian matrix is uniform over rotations and reflections once the signs of R are positive.
    """
    d = points.shape[-1]
    q, r = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=generator))
    return points @ (q * r.diagonal().sign()).to(points)


def angle(u: Float[Tensor, "*rows d"], v: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows"]:
    r"""Angle in radians between rows of `u` and `v`, exact near 0 and near pi.

    Uses :math:`2 \operatorname{atan2}(|u - v|, |u + v|)` of the unit vectors. The arc cosine of a
    float32 product cannot tell angles below 0.02 degrees from 0.

    >>> angle(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1e-6]))
    tensor(1.0000e-06)
    """
    u, v = normalize(u), normalize(v)
    apart = torch.linalg.vector_norm(u - v, dim=-1)
    together = torch.linalg.vector_norm(u + v, dim=-1)
    return 2 * torch.atan2(apart, together)


def tangent(point: Float[Tensor, "*rows d"], vector: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """The part of `vector` that is orthogonal to the unit `point`: its projection on the tangent space."""
    return vector - (vector * point).sum(-1, keepdim=True) * point


def sine(cosine: PerSample) -> PerSample:
    r""":math:`\sqrt{1 - c^2}` of a cosine, with the subgradient 0 where it has a cusp (c = -1 and 1).

    The true one-sided derivative there is infinite, and it meets a zero tangent on the way to the
    embedding: 0 is the limit of the product, NaN is what plain autograd makes of it.
    """
    square = (1 - cosine) * (1 + cosine)
    inside = square > 0
    return torch.where(inside, torch.where(inside, square, 1.0).sqrt(), 0.0)


def arc(cosine: PerSample) -> PerSample:
    """Angle in [0, pi] of a cosine; as precise as the cosine is, with finite gradients at both ends."""
    return torch.atan2(sine(cosine), cosine)
