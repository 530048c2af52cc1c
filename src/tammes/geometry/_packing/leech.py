"""The Golay code, the Leech lattice and the sharp codes in it (J. H. Conway and N. J. A. Sloane, SPLAG)."""

import itertools

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tammes._common.types import Prototypes
from tammes.geometry._packing.layers import kissing, layer
from tammes.geometry.sphere import normalize

_GENERATOR = (0, 1, 5, 6, 7, 9, 11)  # powers of x in the Golay code's generator polynomial


def golay() -> Int[Tensor, "4096 24"]:
    """The words of the extended binary Golay code: sums of shifts of one word, and a parity bit."""
    rows = torch.zeros(12, 24, dtype=torch.int64)
    for shift in range(12):
        rows[shift, [power + shift for power in _GENERATOR]] = 1
    rows[:, 23] = rows.sum(1) % 2
    return _bits(12) @ rows % 2


def _shortest() -> Float[Tensor, "196560 24"]:
    """The shortest vectors of the Leech lattice times the square root of 8; their squared norm is 32."""
    words = golay()
    octads = words[words.sum(1) == 8]
    axes = torch.eye(24, dtype=torch.int64)
    pairs = [a * axes[i] + b * axes[j] for i, j in itertools.combinations(range(24), 2) for a, b in _SIGNS]
    signs = _bits(8)
    signs = 1 - 2 * signs[signs.sum(1) % 2 == 0]
    twos = torch.zeros(len(octads), len(signs), 24, dtype=torch.int64)
    places = octads.nonzero()[:, 1].view(-1, 1, 8).expand(-1, len(signs), -1)
    twos.scatter_(2, places, signs.expand(len(octads), -1, -1))
    odd = (1 - 4 * axes)[:, None] * (1 - 2 * words)
    return torch.cat([4 * torch.stack(pairs), 2 * twos.flatten(0, 1), odd.flatten(0, 1)]).double()


_SIGNS = tuple(itertools.product((1, -1), repeat=2))


def _bits(length: int) -> Int[Tensor, "words length"]:
    return torch.arange(2**length)[:, None] >> torch.arange(length) & 1


def leech_196560() -> Prototypes:
    """The shortest vectors of the Leech lattice; 24 dimensions, cosine 1/2."""
    return normalize(_shortest())


def leech_4600() -> Prototypes:
    """Neighbors of one of them; 23 dimensions, cosine 1/3."""
    points = _shortest()
    return layer(points, points[:1], [16.0])


def leech_891() -> Prototypes:
    """Neighbors of one of these; 22 dimensions, cosine 1/4."""
    return kissing(leech_4600())


_TYPE_3 = (5.0, *[1.0] * 23)
"""A lattice vector of squared norm 48, the second smallest."""


def equiangular_552() -> Prototypes:
    """The 276 equiangular lines in 23 dimensions, both ways; cosine 1/5."""
    points = _shortest()
    return layer(points, points.new_tensor([_TYPE_3]), [24.0])


def mclaughlin_275() -> Prototypes:
    """Vertices of McLaughlin's graph, neighbors of one of the 552; 22 dimensions, cosine 1/6."""
    return kissing(equiangular_552())


def mclaughlin_162() -> Prototypes:
    """Its vertices that are not adjacent to one of them; 21 dimensions, cosine 1/7."""
    return kissing(mclaughlin_275())


def mclaughlin_112() -> Prototypes:
    """Its vertices that are adjacent to one of them; 21 dimensions, cosine 1/9."""
    points = mclaughlin_275()
    return layer(points, points[:1], [-1 / 4])


def higman_sims_100() -> Prototypes:
    """Vertices of the Higman-Sims graph; 22 dimensions, cosine 1/11.

    Lattice points at the least distance from the corners of a triangle with squared side lengths 4, 6, 6.
    """
    points = _shortest()
    corner = points.new_tensor(_TYPE_3)
    other = points[points @ corner == 16.0][0]
    return layer(points, torch.stack([corner, other]), [24.0, 16.0])


def m22_77() -> Prototypes:
    """Vertices of the Higman-Sims graph that are not adjacent to one; 21 dimensions, cosine 1/12."""
    return kissing(higman_sims_100())


def gewirtz_56() -> Prototypes:
    """Vertices of the Higman-Sims graph that are adjacent to neither end of an edge; 20 dimensions, 1/15."""
    points = higman_sims_100()
    cosines = points @ points[0]
    return layer(points, points[[0, int(cosines.argmin())]], [1 / 11, 1 / 11])


def kerdock_288() -> Prototypes:
    """Words of the Nordstrom-Robinson code as signs, and the axes both ways; 16 dimensions, cosine 1/4.

    The words of the Golay code that are zero on an octad, or one on its last and one other place, without
    the octad.
    """
    words = golay()
    octad = words[words.sum(1) == 8][0].bool()
    inside, outside = words[:, octad], words[:, ~octad]
    alike = (inside.sum(1) == 0) | ((inside.sum(1) == 2) & (inside[:, 7] == 1))
    axes = torch.eye(16, dtype=torch.float64)
    return torch.cat([(1 - 2 * outside[alike]).double() / 4, axes, -axes])
