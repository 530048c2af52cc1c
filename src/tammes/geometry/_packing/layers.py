"""Derived codes: the points of a code at given inner products with fixed ones, in fewer dimensions."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.geometry.sphere import normalize

_RANK = 1e-9


def layer(
    points: Float[Tensor, "n d"], centres: Float[Tensor, "m d"], products: list[float]
) -> Float[Tensor, "k e"]:
    """The points whose inner products with the `centres` are `products`, projected on the space orthogonal to
    these and scaled to unit length.

    With one center that is itself a point and the largest inner product below 1 this is the kissing
    configuration of a code: of the 240 roots of E8 it gives 56 points in 7 dimensions, of those 27 in 6.
    """
    chosen = ((points @ centres.T - points.new_tensor(products)).abs() < _RANK).all(1)
    kept = points[chosen].double()
    onto = torch.linalg.lstsq(centres.T.double(), kept.T).solution
    return normalize(in_own_span(kept - (centres.T.double() @ onto).T))


def in_own_span(points: Float[Tensor, "k d"]) -> Float[Tensor, "k e"]:
    """`points` in an orthonormal basis of the space they span: as many coordinates as dimensions."""
    _, size, basis = torch.linalg.svd(points, full_matrices=False)
    return points @ basis[size > _RANK * size[0]].T


def kissing(points: Float[Tensor, "n d"]) -> Float[Tensor, "k e"]:
    """The kissing configuration of the first point: its nearest neighbors, in one dimension less."""
    cosines = points[1:] @ points[0]
    return layer(points, points[:1], [float(cosines.max())])
