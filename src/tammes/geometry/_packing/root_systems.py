"""Root systems: D_n, A_n, E6, E7, E8 and H4, the 600-cell; as unit vectors."""

import itertools
import math

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common.types import Prototypes
from tammes.geometry._packing.layers import in_own_span
from tammes.geometry.sphere import normalize


def a_roots(d: int) -> Prototypes:
    """The d (d + 1) differences of two of d + 1 axes; 60 degrees."""
    axes = torch.eye(d + 1, dtype=torch.float64)
    pairs = itertools.permutations(range(d + 1), 2)
    return normalize(in_own_span(torch.stack([axes[i] - axes[j] for i, j in pairs])))


def d_roots(d: int) -> Prototypes:
    """The 2 d (d - 1) sums of two axes with any signs; 60 degrees. D4 is the 24-cell."""
    return normalize(_signed_pairs(d))


def e8_roots() -> Prototypes:
    """The 240 shortest vectors of E8; 60 degrees."""
    return normalize(_e8())


def e7_roots() -> Prototypes:
    """The 126 roots of E8 that are orthogonal to one of them; 60 degrees."""
    return _orthogonal_to(_e8(), 1)


def e6_roots() -> Prototypes:
    """The 72 roots of E8 that are orthogonal to two of them at 120 degrees; 60 degrees."""
    return _orthogonal_to(_e8(), 2)


def h4_roots() -> Prototypes:
    """The 120 corners of the 600-cell; 36 degrees."""
    golden = (1 + math.sqrt(5)) / 2
    axes = torch.eye(4, dtype=torch.float64)
    halves = torch.tensor(list(itertools.product((-0.5, 0.5), repeat=4)), dtype=torch.float64)
    signed = [
        [0.0, a / 2, b * golden / 2, c / (2 * golden)] for a, b, c in itertools.product((-1, 1), repeat=3)
    ]
    rest = torch.tensor(
        [[row[i] for i in order] for row in signed for order in _even_permutations(4)], dtype=torch.float64
    )
    return normalize(torch.cat([axes, -axes, halves, rest]))


def _e8() -> Prototypes:
    halves = torch.tensor(list(itertools.product((-0.5, 0.5), repeat=8)), dtype=torch.float64)
    return torch.cat([_signed_pairs(8), halves[halves.prod(1) > 0]])


def _orthogonal_to(roots: Float[Tensor, "n d"], count: int) -> Float[Tensor, "k e"]:
    """The roots orthogonal to the first one, and with a `count` of 2 also to one at 120 degrees to it."""
    products = roots @ roots.T
    fixed = [0, int((products[0] == -1).nonzero()[0])][:count]
    return normalize(in_own_span(roots[(products[fixed] == 0).all(0)]))


def _signed_pairs(d: int) -> Prototypes:
    axes = torch.eye(d, dtype=torch.float64)
    pairs = itertools.combinations(range(d), 2)
    return torch.stack([a * axes[i] + b * axes[j] for i, j in pairs for a in (1, -1) for b in (1, -1)])


def _even_permutations(n: int) -> list[tuple[int, ...]]:
    def inversions(order: tuple[int, ...]) -> int:
        return sum(a > b for a, b in itertools.combinations(order, 2))

    return [order for order in itertools.permutations(range(n)) if inversions(order) % 2 == 0]
