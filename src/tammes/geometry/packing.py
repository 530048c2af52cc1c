"""The Tammes problem: k points on the sphere in d dimensions, as far apart as they can be (eq. 2.3)."""

import math
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from tammes import checks
from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.descent import Cosines, LogDistances, NegativeMargins, Points
from tammes.geometry.margins import class_margin, gamma_min
from tammes.geometry.polish import CosineTerms, MarginTerms
from tammes.geometry.search import Clock, Progress, Search, random_starts, small
from tammes.geometry.simplex import orthoplex, polygon, simplex
from tammes.geometry.sphere import normalize
from tammes.geometry.sweeps import measuring_time, smallest_angle, sweep_apart
from tammes.geometry.tiles import blocks, double
from tammes.threads import one_thread
from tammes.types import Prototypes

_CONTACT = 1e-7
_MET = 1e-9
# More points than the first, in no fewer dimensions than the second, are swept block by block.
_SWEPT, _ROOMY = 4096, 16


@dataclass(frozen=True, eq=False)
class Packing:
    """Points on the unit sphere, how far apart they are, and how far apart they could be at most.

    Attributes:
        points: (k, d), float64.
        angle: the smallest angle between two of them, in radians.
        bound: no k points have a larger one.
        bound_name: the theorem behind the bound.
        seconds: what it took.
    """

    points: Prototypes
    angle: float
    bound: float
    bound_name: str
    seconds: float

    @property
    def gamma(self) -> float:
        """The largest `gamma_min` that these prototypes allow, 1 - cos(angle), with features on them."""
        return 2 * math.sin(self.angle / 2) ** 2

    @property
    def optimal(self) -> bool:
        """Whether the bound is met, to 1e-9 radians: nothing better exists."""
        return self.angle >= self.bound - _MET

    @cached_property
    def contacts(self) -> Int[Tensor, "contacts 2"]:
        """Pairs (i, j), i < j, at the smallest angle, to 1e-7 radians."""
        threshold = math.cos(min(self.angle + _CONTACT, math.pi))
        return torch.cat([_pairs_above(self.points, rows, threshold) for rows in blocks(len(self.points))])

    @cached_property
    def rattlers(self) -> Int[Tensor, " rattlers"]:
        """Points that touch no other: they can move without changing the angle."""
        loose = torch.ones(len(self.points), dtype=torch.bool, device=self.points.device)
        loose[self.contacts.flatten()] = False
        return loose.nonzero().flatten()


class SoftmaxCode(NamedTuple):
    """Prototypes and one feature per class with the largest smallest sample margin found, `gamma`."""

    weight: Prototypes
    features: Prototypes
    gamma: float


def pack(
    k: int,
    d: int,
    *,
    seed: int = 0,
    restarts: int | None = None,
    time_limit: float | None = None,
    polish: bool = True,
    method: Literal["lse", "riesz"] = "lse",
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Packing:
    r"""Spread k points over the unit sphere in d dimensions so that the closest two are far apart.

    .. math:: \max_{w_1, \dots, w_k} \min_{i \ne j} \angle(w_i, w_j)

    Where the optimum has a formula (k <= 2 d, d = 2) that is returned at once. Otherwise random starts
    descend :math:`\tfrac{1}{s} \log \sum_{i<j} e^{s \cos(w_i, w_j)}` at large s, all in one batch, and the
    most promising are polished by linear programs until the points that touch do so to rounding. This is
    a search: what it finds is a certified lower bound of the optimum, and the optimum if `.optimal` says so.

    Large problems (k (d - 1) > 800) descend from one start in float32, s growing; beyond 4,096 points they
    go by sweeps over blocks that push each point from its nearest neighbours, in memory that grows with
    k, not with its square. Both go on for as long as they improve.

    Args:
        k: how many points, at least 2.
        d: dimensions, at least 2.
        seed: of the random starts; the same seed gives the same points, unless time runs out.
        restarts: how many random starts; by default as many as are worth their time.
        time_limit: seconds after which the best so far is returned. Ctrl-C does the same.
        polish: whether to finish with linear programs; without, only growing exponents.
        method: "riesz" descends the paper's Riesz energy (eq. 2.4) with growing t instead, for comparison.
        device: where the work is done on large problems, and where the points are returned.
        progress: called now and then with the angle so far and what is being done.

    >>> packing = pack(8, 3)
    >>> f"{math.degrees(packing.angle):.6f}", packing.optimal, len(packing.contacts)
    ('74.858492', True, 16)
    """
    checks.at_least("k", k, 2)
    checks.at_least("d", d, 2)
    checks.one_of("method", method, ("lse", "riesz"))
    clock = _checked_clock(seed, restarts, time_limit)
    bound = largest_class_margin(k, d)
    swept = k > _SWEPT and d >= _ROOMY and method == "lse"
    if method == "lse" and (d == 2 or k <= 2 * d):
        points = _closed_form(k, d)
    else:
        starts = random_starts(1 if swept else restarts, k, d, seed)
        starts = starts if small(k, d) else starts.to(device)
        if swept:
            points = _sweep(starts[0], clock, progress)
        elif method == "riesz":
            # t = 2 a makes points that touch as stiff as they are at s = a / (1 - cos).
            points = _found(Search(LogDistances(), None, 0.5, -math.inf, clock, progress), starts)
        else:
            terms = CosineTerms(k) if polish and small(k, d) else None
            goal = math.cos(bound.angle)
            points = _found(Search(Cosines(), terms, 1 - goal, goal, clock, progress), starts)
    points = normalize(double(points.to(device)))
    angle = smallest_angle(points) if swept else float(class_margin(points))
    return Packing(points, angle, bound.angle, bound.name, clock.seconds)


def softmax_code(
    k: int, d: int, *, seed: int = 0, restarts: int | None = None, time_limit: float | None = None
) -> SoftmaxCode:
    r"""Prototypes and features, one per class, that maximise the smallest sample margin (paper, Theorem 2.2).

    .. math:: \max_{w, z} \gamma_{\min}, \quad \gamma_{\min} = \min_i \min_{j \ne i} (w_i - w_j) \cdot z_i

    Both are free, and nothing here knows of packings; yet the prototypes become one, a feature coincides
    with its prototype where that touches another, and gamma is 1 - cos of the largest class margin (not
    the chord, as the paper's proof has it). `pack` is the faster way to the same; its arguments are these.

    >>> round(softmax_code(4, 3).gamma, 9)
    1.333333333
    """
    checks.at_least("k", k, 2)
    checks.at_least("d", d, 2)
    clock = _checked_clock(seed, restarts, time_limit)
    softness = 1 - math.cos(largest_class_margin(k, d).angle)
    terms = MarginTerms(k) if small(2 * k, d) else None
    search = Search(NegativeMargins(), terms, softness, -softness, clock, None)
    points = _found(search, random_starts(restarts, 2 * k, d, seed))
    weight, features = normalize(points.double()).chunk(2)
    return SoftmaxCode(weight, features, float(gamma_min(features, weight, torch.arange(k))))


def _checked_clock(seed: int, restarts: int | None, time_limit: float | None) -> Clock:
    checks.at_least("seed", seed, 0)
    if restarts is not None:
        checks.at_least("restarts", restarts, 1)
    return Clock(None if time_limit is None else checks.positive("time_limit", time_limit))


def _closed_form(k: int, d: int) -> Prototypes:
    """The best packing, where it has a formula."""
    if k <= d + 1:
        return simplex(k, d)
    return polygon(k) if d == 2 else orthoplex(k, d)


def _found(search: Search, starts: Points) -> Prototypes:
    threads = one_thread() if small(*starts.shape[1:]) else nullcontext()
    with threads, search.clock.interruptible():
        search.run(starts)
    _warn_unless(search.finished, search.clock)
    return search.points


def _sweep(points: Prototypes, clock: Clock, progress: Progress | None) -> Prototypes:
    """Sweep in place, and leave time to measure the result."""
    clock.reserve = measuring_time(points)
    with clock.interruptible():
        finished = sweep_apart(points, stop=clock.stop, progress=progress)
    _warn_unless(finished, clock)
    return points


def _warn_unless(finished: bool, clock: Clock) -> None:
    if not (finished or clock.interrupted):
        warnings.warn(
            f"time_limit={clock.limit:g} ended the search before one start was finished: this is the best "
            "so far. Allow more time for a larger angle.",
            stacklevel=4,
        )


def _pairs_above(points: Prototypes, rows: slice, threshold: float) -> Int[Tensor, "pairs 2"]:
    """Pairs (i, j), i in `rows` and j > i, whose cosine reaches the threshold."""
    cosines = points[rows] @ points[rows.start :].T
    return (cosines >= threshold).triu(1).nonzero() + rows.start
