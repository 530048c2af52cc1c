"""Packings of very many points: sweeps over blocks, without the matrix of all cosines."""

import math
import time
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from tammes._common.row_blocks import TILE_ROWS, double, row_slices
from tammes._common.types import Prototypes
from tammes.geometry import sphere
from tammes.geometry._descent import PerStart, Points, ValueAndGradient, lbfgs
from tammes.geometry._packing.multistart import Progress

_BLOCK = 256
_GROUP = 8
_MOVES = 3
_WORTHWHILE = 2e-4
_SINGLE = 1e-5


def sweep_apart(points: Prototypes, *, stop: Callable[[], bool], progress: Progress | None) -> bool:
    r"""Push `points` (unit rows) apart in place. Returns whether they converged before `stop()`.

    A sweep visits all points block by block, those with the closest neighbors first, so the smallest angle
    grows from the first block on. For each point it finds the d / 2 nearest neighbors, and moves the point
    until none is closer than the last of them was, by descent of
    :math:`\tfrac{1}{2} \sum_j \max(0, \cos(w, w_j) - c)^2`. This is the shortest move, so it hardly disturbs
    the other points; half as many neighbors as dimensions leave a point enough freedom. Memory: the cosines
    of a block with all points, and its neighbors.

    `progress` receives the smallest known angle and the next block.
    """
    nearest = _nearest_cosines(points, stop)
    if nearest is None:
        return False
    last, largest, sweep = math.inf, float(nearest.max()), 0
    while last - largest > _WORTHWHILE * (1 - largest):
        last, sweep = largest, sweep + 1
        order = nearest.argsort(descending=True, stable=True).split(_BLOCK)
        for number, rows in enumerate(order, start=1):
            if stop():
                return False
            if progress is not None:
                progress(math.acos(largest), f"sweep {sweep}, block {number} of {len(order)}")
            nearest[rows] = _spread(points, rows)
            largest = float(nearest.max())
    return True


def _nearest_cosines(points: Prototypes, stop: Callable[[], bool]) -> Float[Tensor, " k"] | None:
    """Each point's largest cosine with the points after it; None if time runs out."""
    parts = []
    for rows in row_slices(len(points)):
        if stop():
            return None
        parts.append(_row_maxima(points, rows))
    return torch.cat(parts)


def _spread(points: Prototypes, rows: Int[Tensor, " block"]) -> Float[Tensor, " block"]:
    """Move the points in `rows` away from their neighbors; return the largest remaining cosine of each."""
    cosines, nearest = _nearest(points, rows, points.shape[1] // 2)
    neighbors = points[nearest]
    objective = _excess(neighbors, cosines[:, -1])
    moved = lbfgs(objective, points[rows].unsqueeze(1), iterations=_MOVES)
    points[rows] = moved.squeeze(1)
    return (moved @ neighbors.mT).amax((1, 2))


def _nearest(
    points: Prototypes, rows: Int[Tensor, " block"], count: int
) -> tuple[Float[Tensor, "block count"], Int[Tensor, "block count"]]:
    """The largest cosines of each row with other points, in descending order, and their indices.

    Only the nearest of every eight points, which are far apart in the matrix, is a candidate: this misses
    almost nothing and is several times faster than sorting all of them.
    """
    cosines = points[rows] @ points.T
    cosines.scatter_(1, rows.unsqueeze(1), -1.0)
    cosines = F.pad(cosines, (0, -len(points) % _GROUP), value=-1.0)
    top, member = cosines.unflatten(1, (_GROUP, -1)).max(1)
    values, place = top.topk(min(count, top.shape[1]), dim=1)
    return values, member.gather(1, place) * top.shape[1] + place


def _excess(neighbors: Float[Tensor, "starts m d"], allowed: PerStart) -> ValueAndGradient:
    """Half the squared excess of the cosines with the neighbors over the allowed cosine."""

    def objective(points: Points) -> tuple[PerStart, Points]:
        excess = (points @ neighbors.mT - allowed[:, None, None]).clamp_min_(0)
        return excess.square().sum((1, 2)) / 2, excess @ neighbors

    return objective


def smallest_angle(points: Prototypes) -> float:
    """The smallest angle between very many points: found in single precision, computed in double."""
    single = points.float()
    largest = torch.cat([_row_maxima(single, rows) for rows in row_slices(len(points))])
    near = float(largest.max()) - _SINGLE
    suspects = (largest >= near).nonzero().flatten()
    return min(_measure(points, single, rows, near) for rows in suspects.split(_BLOCK))


def measuring_time(points: Prototypes) -> float:
    """Estimated duration of `smallest_angle` in seconds, from the time of its first block."""
    start = time.perf_counter()
    float(_row_maxima(points, slice(0, TILE_ROWS)).max())
    return (time.perf_counter() - start) * len(points) / (2 * TILE_ROWS)


def _row_maxima(points: Prototypes, rows: slice) -> Float[Tensor, " block"]:
    """Each row's largest cosine with the points after it."""
    return (points[rows] @ points[rows.start :].T).triu_(1).amax(1)


def _measure(points: Prototypes, single: Prototypes, rows: Int[Tensor, " block"], near: float) -> float:
    """The smallest angle among the pairs of a row and another point whose cosine is near the largest."""
    cosines = single[rows] @ single.T
    cosines.scatter_(1, rows.unsqueeze(1), -1.0)
    row, other = (cosines >= near).nonzero().unbind(1)
    return float(sphere.angle(double(points[rows[row]]), double(points[other])).min())
