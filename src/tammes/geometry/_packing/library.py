"""Codes known by construction: optimal packings that need no search, and starting points for other sizes."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common.types import Prototypes
from tammes.geometry._packing import graphs, leech, root_systems
from tammes.geometry._packing.layers import kissing
from tammes.geometry.sphere import normalize


class KnownCode(NamedTuple):
    """A symmetric code of k points in d dimensions, constructed on demand."""

    k: int
    d: int
    build: Callable[[], Prototypes]


_SINGLE = (
    KnownCode(120, 4, root_systems.h4_roots),
    KnownCode(16, 5, lambda: kissing(_schlaefli())),
    KnownCode(27, 6, lambda: _schlaefli()),
    KnownCode(54, 6, lambda: _both_ways(_schlaefli())),
    KnownCode(72, 6, root_systems.e6_roots),
    KnownCode(56, 7, lambda: kissing(root_systems.e8_roots())),
    KnownCode(126, 7, root_systems.e7_roots),
    KnownCode(240, 8, root_systems.e8_roots),
    KnownCode(288, 16, leech.kerdock_288),
    KnownCode(56, 20, leech.gewirtz_56),
    KnownCode(50, 21, graphs.hoffman_singleton_50),
    KnownCode(77, 21, leech.m22_77),
    KnownCode(112, 21, leech.mclaughlin_112),
    KnownCode(162, 21, leech.mclaughlin_162),
    KnownCode(100, 22, leech.higman_sims_100),
    KnownCode(275, 22, leech.mclaughlin_275),
    KnownCode(891, 22, leech.leech_891),
    KnownCode(552, 23, leech.equiangular_552),
    KnownCode(4600, 23, leech.leech_4600),
    KnownCode(196560, 24, leech.leech_196560),
)
# Cubes and codes that contain them have 2^d points, too many for `pack` in more dimensions.
_CUBES = 12


def codes_in(d: int) -> list[KnownCode]:
    """The known codes in d >= 3 dimensions, smallest first."""
    families = [
        KnownCode(2 * d, d, lambda: _axes(d)),
        KnownCode(d * (d + 1), d, lambda: root_systems.a_roots(d)),
        KnownCode(2 * d * (d - 1), d, lambda: root_systems.d_roots(d)),
        KnownCode(2 * d * d, d, lambda: torch.cat([_axes(d), root_systems.d_roots(d)])),
    ]
    if d <= _CUBES:
        families += [
            KnownCode(2 ** (d - 1), d, lambda: _half_cube(d)),
            KnownCode(2 ** (d - 1) + 2 * d, d, lambda: torch.cat([_half_cube(d), _axes(d)])),
            KnownCode(2**d + 2 * d, d, lambda: torch.cat([_cube(d), _axes(d)])),
        ]
    return sorted([*families, *(code for code in _SINGLE if code.d == d)], key=lambda code: code.k)


def _schlaefli() -> Prototypes:
    """Vertices of Schlaefli's graph, the 27 lines on a cubic surface; 6 dimensions, cosine 1/4."""
    return kissing(kissing(root_systems.e8_roots()))


def _both_ways(points: Float[Tensor, "half d"]) -> Prototypes:
    return torch.cat([points, -points])


def _axes(d: int) -> Prototypes:
    return _both_ways(torch.eye(d, dtype=torch.float64))


def _cube(d: int) -> Prototypes:
    return normalize(torch.tensor(list(itertools.product((-1.0, 1.0), repeat=d)), dtype=torch.float64))


def _half_cube(d: int) -> Prototypes:
    corners = _cube(d)
    return corners[corners.prod(1) > 0]
