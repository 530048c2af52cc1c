"""Resize known codes: delete points from a larger code, or add points to a smaller one."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common.types import Prototypes
from tammes.geometry._packing.holes import with_holes_filled
from tammes.geometry._packing.library import codes_in
from tammes.geometry.sphere import normalize

_LARGER, _SMALLER = 2.0, 0.75
_MOVED = 4
_JITTER = 0.02


def resized_codes(count: int, k: int, d: int, generator: torch.Generator) -> list[Prototypes]:
    """About `count` codes of k points from each known code of similar size in d dimensions.

    A code of exactly k points comes first, once and unchanged.
    """
    known = [code for code in codes_in(d) if _SMALLER * k <= code.k <= _LARGER * k]
    exact = [code.build() for code in known if code.k == k]
    others = [code.build() for code in known if code.k != k]
    return exact + [_resized(points, k, i % 2 == 0, generator) for points in others for i in range(count)]


def _resized(
    points: Float[Tensor, "n d"], k: int, cap: bool, generator: torch.Generator
) -> Float[Tensor, "k d"]:
    if len(points) < k:
        return with_holes_filled(points, k - len(points), generator)
    if cap:
        # Delete a cap around one direction: the other points keep their neighbors and can spread into it.
        direction = torch.randn(points.shape[1], generator=generator, dtype=points.dtype)
        return points[(points @ direction).argsort()[:k]]
    return points[torch.randperm(len(points), generator=generator)[:k]]


def relocated(points: Prototypes, count: int, generator: torch.Generator) -> Float[Tensor, "count k d"]:
    """Copies of a code, each with one to four points moved to deep holes."""
    return torch.stack([_relocated(points, 1 + i % _MOVED, generator) for i in range(count)])


def _relocated(points: Prototypes, moves: int, generator: torch.Generator) -> Prototypes:
    kept = torch.randperm(len(points), generator=generator)[moves:]
    return with_holes_filled(points[kept], moves, generator)


def shaken(points: Float[Tensor, "*starts k d"], generator: torch.Generator) -> Float[Tensor, "*starts k d"]:
    """Perturb each point slightly, so that descent can leave a saddle point."""
    noise = torch.randn(points.shape, generator=generator, dtype=points.dtype)
    return normalize(points + _JITTER * noise)
