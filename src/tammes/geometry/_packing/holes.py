"""Deep holes of a code: places on the sphere far from all of its points."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.geometry.sphere import normalize

_PROBES = 512


def with_holes_filled(
    points: Float[Tensor, "n d"], count: int, generator: torch.Generator
) -> Float[Tensor, "k d"]:
    """`points` and `count` more, each placed in turn in the deepest hole found."""
    for _ in range(count):
        points = torch.cat([points, _deepest_hole(points, generator)])
    return points


def _deepest_hole(points: Float[Tensor, "n d"], generator: torch.Generator) -> Float[Tensor, "1 d"]:
    """The random probe farthest from its nearest point. Descent of the whole code refines it."""
    probes = torch.randn(_PROBES, points.shape[1], generator=generator, dtype=points.dtype)
    probes = normalize(probes)
    return probes[(probes @ points.T).amax(1).argmin()][None]
