"""Starts with a cyclic symmetry: orbits of random points under a random rotation of finite order.

Descent preserves the symmetry up to rounding, so such starts search the much smaller set of symmetric codes.
These include antipodal codes, because a rotation of even order can contain the point reflection.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.geometry.sphere import normalize

_TRIES = 100


class Rotation(NamedTuple):
    """Rotates plane p by `turns[p]` / n turns; in odd dimensions the last axis is kept or flipped."""

    n: int
    turns: tuple[int, ...]
    flips: bool
    odd: bool

    def periods(self) -> list[int]:
        """The period of each plane, then of the axis, in rotations."""
        planes = [self.n // math.gcd(self.n, turn) for turn in self.turns]
        return planes + [2 if self.flips else 1] * self.odd

    def orbit(self, point: Float[Tensor, " d"], length: int) -> Float[Tensor, "length d"]:
        times = torch.arange(length, dtype=torch.float64)[:, None]
        angle = times * torch.tensor(self.turns, dtype=torch.float64) * (2 * math.pi / self.n)
        x, y = point[: 2 * len(self.turns)].view(-1, 2).T
        planes = torch.stack([x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()], dim=2)
        axis = point[2 * len(self.turns) :] * (-1.0 if self.flips else 1.0) ** times
        return torch.cat([planes.flatten(1), axis], dim=1)


def symmetric_starts(count: int, k: int, d: int, generator: torch.Generator) -> Float[Tensor, "starts k d"]:
    """Starts of k points, each with its own random symmetry; small orders are more frequent."""
    return normalize(torch.stack([_symmetric(k, d, generator) for _ in range(count)]))


def _symmetric(k: int, d: int, generator: torch.Generator) -> Float[Tensor, "k d"]:
    for _ in range(_TRIES):
        rotation = _random_rotation(k, d, generator)
        lengths = _orbit_lengths(k, rotation.periods())
        if lengths is not None:
            points = [_point(rotation, length, d, generator) for length in lengths]
            return torch.cat([rotation.orbit(*pair) for pair in zip(points, lengths, strict=True)])
    return torch.randn(k, d, generator=generator, dtype=torch.float64)


def _random_rotation(k: int, d: int, generator: torch.Generator) -> Rotation:
    n = round(2 * (k / 2) ** float(torch.rand((), generator=generator)))
    turns = torch.randint(n, (d // 2,), generator=generator)
    flips = bool(torch.randint(2, (), generator=generator)) and n % 2 == 0 and d % 2 == 1
    return Rotation(n, tuple(turns.tolist()), flips, d % 2 == 1)


def _orbit_lengths(k: int, periods: list[int]) -> list[int] | None:
    """Orbit lengths that add up to k, with as many of the longest as fit; None if there are none."""
    order = math.lcm(*periods)
    lengths = []
    for length in range(order, 0, -1):
        # A point on the planes whose period divides the length has an orbit no longer than that.
        fixed = [period for period in periods if length % period == 0]
        if order % length == 0 and fixed and math.lcm(*fixed) == length:
            lengths += [length] * ((k - sum(lengths)) // length)
    return lengths if order > 1 and sum(lengths) == k else None


def _point(rotation: Rotation, length: int, d: int, generator: torch.Generator) -> Float[Tensor, " d"]:
    """A random point whose orbit has this length."""
    periods = torch.tensor(rotation.periods()).repeat_interleave(2)[:d]
    point = torch.randn(d, generator=generator, dtype=torch.float64)
    return normalize(torch.where(length % periods == 0, point, 0.0))
