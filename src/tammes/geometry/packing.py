"""The Tammes problem: k points on the sphere in d dimensions, as far apart as possible (eq. 2.3)."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tammes._common import checks
from tammes._common.row_blocks import double, row_slices
from tammes._common.threads import one_thread
from tammes._common.types import Prototypes
from tammes.geometry._descent import Cosines, LogDistances, NegativeMargins, Points
from tammes.geometry._packing.library import codes_in
from tammes.geometry._packing.multistart import Clock, PackingSearch, Progress, random_starts, small
from tammes.geometry._packing.polish import CosineTerms, MarginTerms
from tammes.geometry._packing.starts import all_starts, further_starts, known_codes
from tammes.geometry._packing.sweeps import measuring_time, smallest_angle, sweep_apart
from tammes.geometry._point_checks import on_sphere
from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.coordinates import read_points, write_points
from tammes.geometry.margins import class_margin, gamma_min
from tammes.geometry.simplices import orthoplex, polygon, simplex
from tammes.geometry.sphere import normalize

_CONTACT = 1e-7
_MET = 1e-9
# Problems with more points than the first and at least as many dimensions as the second use sweeps.
_SWEPT, _ROOMY = 4096, 16


@dataclass(frozen=True, eq=False)
class Packing:
    """Points on the unit sphere, their smallest angle, and an upper bound on it.

    Attributes:
        points: (k, d), float64.
        angle: the smallest angle between two of them, in radians.
        bound: upper bound on the angle for any k points, in radians.
        bound_name: the theorem behind the bound.
        seconds: duration of the search.
    """

    points: Prototypes
    angle: float
    bound: float
    bound_name: str
    seconds: float

    @property
    def gamma(self) -> float:
        """The largest `gamma_min` for these prototypes, 1 - cos(angle), with features equal to them."""
        return 2 * math.sin(self.angle / 2) ** 2

    @property
    def optimal(self) -> bool:
        """Whether the angle attains the bound, to 1e-9 radians, so that the packing is optimal."""
        return self.angle >= self.bound - _MET

    @property
    def theorem(self) -> str | None:
        """The theorem that proves optimality; None if the bound is not attained."""
        return self.bound_name if self.optimal else None

    def save(self, path: str | Path) -> None:
        """Write the points to a .txt file, one per row as in public tables, or to a .npy file."""
        write_points(Path(path), self.points)

    @cached_property
    def contacts(self) -> Int[Tensor, "contacts 2"]:
        """Pairs (i, j), i < j, at the smallest angle, to 1e-7 radians."""
        threshold = math.cos(min(self.angle + _CONTACT, math.pi))
        return torch.cat(
            [_pairs_above(self.points, rows, threshold) for rows in row_slices(len(self.points))]
        )

    @cached_property
    def rattlers(self) -> Int[Tensor, " rattlers"]:
        """Points without contacts, which can move without changing the angle."""
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
    start: Prototypes | np.ndarray | str | Path | None = None,
    seed: int = 0,
    restarts: int | None = None,
    time_limit: float | None = 60.0,
    polish: bool = True,
    method: Literal["lse", "riesz"] = "lse",
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Packing:
    r"""Maximize the smallest angle between k points on the unit sphere in d dimensions.

    .. math:: \max_{w_1, \dots, w_k} \min_{i \ne j} \angle(w_i, w_j)

    Where the optimum has a formula (k <= 2 d, d = 2) or is a known code (root systems, the 600-cell, sharp
    codes from the Leech lattice), it is returned at once. Otherwise, descent minimizes
    :math:`\tfrac{1}{s} \log \sum_{i<j} e^{s \cos(w_i, w_j)}` at large s from a batch of starts: random ones,
    ones with a cyclic symmetry, and known codes with points deleted or added. The most promising results are
    polished by linear programs until contacts are exact to rounding. Then points of the best packing are
    moved to its deepest holes, until several rounds bring no improvement. The search is heuristic: its result
    is a certified lower bound on the optimum, and optimal if `.optimal` is True.

    Large problems (k (d - 1) > 800) use a single start in float32 with growing s. Beyond 4,096 points, sweeps
    over blocks push each point away from its nearest neighbors, in memory proportional to k. Both continue
    as long as they improve.

    Args:
        k: Number of points, at least 2.
        d: Number of dimensions, at least 2.
        start: Points to improve: (k, d), or the path of a .npy or text file. The result is never worse.
        seed: Seed of the starts. The same seed gives the same points, unless time runs out.
        restarts: Number of random starts, which also sets the size of later rounds. Default: chosen by
            problem size.
        time_limit: Seconds after which the best packing so far is returned, as on Ctrl-C. None for no limit.
        polish: Polish with linear programs; if False, only increase s.
        method: "riesz" descends the paper's Riesz energy (eq. 2.4) with growing t instead, for comparison.
        device: Device of large problems and of the returned points.
        progress: Called periodically with the best angle so far and a description of the current step.

    >>> packing = pack(8, 3)
    >>> f"{math.degrees(packing.angle):.6f}", packing.theorem, len(packing.contacts)
    ('74.858492', 'Schütte and van der Waerden 1951', 16)
    """
    k = checks.at_least("k", k, 2)
    d = checks.at_least("d", d, 2)
    checks.one_of("method", method, ("lse", "riesz"))
    clock = _checked_clock(seed, restarts, time_limit)
    given = None if start is None else _checked_start(start, k, d)
    bound = largest_class_margin(k, d)
    where = torch.device("cpu" if small(k, d) else device)
    if method == "riesz":
        points = _lowest_energy(random_starts(restarts, k, d, seed) if given is None else given[None], clock)
    elif given is None and (formula := _closed_form(k, d)) is not None:
        points = formula
    elif _swept(k, d):
        points = random_starts(1, k, d, seed)[0] if given is None else given.float()
        _sweep(points := points.to(where), clock, progress)
    else:
        goal = math.cos(bound.angle)
        terms = CosineTerms(k) if polish and small(k, d) else None
        further = further_starts(restarts, k, d, seed)
        search = PackingSearch(Cosines(), terms, 1 - goal, goal, clock, progress, further)
        with _searching(search, k, d):
            if given is not None:
                search.improve(given[None].to(where))
            else:
                known = known_codes(k, d, seed)
                search.run(all_starts(restarts, k, d, seed, known).to(where), known)
        points = search.points
    points = normalize(double(points.to(device)))
    angle = smallest_angle(points) if _swept(k, d) else float(class_margin(points))
    _warn_if_cut_short(clock)
    return Packing(points, angle, bound.angle, bound.name, clock.seconds)


def softmax_code(
    k: int,
    d: int,
    *,
    start: Prototypes | np.ndarray | str | Path | None = None,
    seed: int = 0,
    restarts: int | None = None,
    time_limit: float | None = 60.0,
) -> SoftmaxCode:
    r"""Prototypes and features, one per class, that maximize the smallest sample margin (paper, Theorem 2.2).

    .. math:: \max_{w, z} \gamma_{\min}, \quad \gamma_{\min} = \min_i \min_{j \ne i} (w_i - w_j) \cdot z_i

    Both are free, and no packing is given; yet the prototypes become one, a feature coincides
    with its prototype where that touches another, and gamma is 1 - cos of the largest class margin (not
    the chord, as in the paper's proof). `pack` finds the same optimum faster; `k` to `time_limit` are its
    arguments too. With `start`, prototypes to improve, features begin on the prototypes.

    >>> round(softmax_code(4, 3).gamma, 9)
    1.333333333
    """
    k = checks.at_least("k", k, 2)
    d = checks.at_least("d", d, 2)
    clock = _checked_clock(seed, restarts, time_limit)
    softness = 1 - math.cos(largest_class_margin(k, d).angle)
    terms = MarginTerms(k) if small(2 * k, d) else None
    search = PackingSearch(NegativeMargins(), terms, softness, -softness, clock, None)
    given = None if start is None else _checked_start(start, k, d)
    with _searching(search, 2 * k, d):
        if given is None:
            search.run(random_starts(restarts, 2 * k, d, seed))
        else:
            search.improve(torch.cat([given, given])[None])
    _warn_if_cut_short(clock)
    weight, features = normalize(search.points.double()).chunk(2)
    return SoftmaxCode(weight, features, float(gamma_min(features, weight, torch.arange(k))))


def _checked_clock(seed: int, restarts: int | None, time_limit: float | None) -> Clock:
    checks.at_least("seed", seed, 0)
    if restarts is not None:
        checks.at_least("restarts", restarts, 1)
    return Clock(None if time_limit is None else checks.positive("time_limit", time_limit))


def _closed_form(k: int, d: int) -> Prototypes | None:
    """The optimal packing if it has a formula; for very many points also a known code."""
    if k <= d + 1:
        return simplex(k, d)
    if d == 2:
        return polygon(k)
    if k <= 2 * d:
        return orthoplex(k, d)
    return next((code.build() for code in codes_in(d) if code.k == k), None) if _swept(k, d) else None


def _swept(k: int, d: int) -> bool:
    return k > _SWEPT and d >= _ROOMY


def _lowest_energy(starts: Points, clock: Clock) -> Prototypes:
    """Minimize the Riesz energy at growing t."""
    # t = 2 a makes points that touch as stiff as they are at s = a / (1 - cos).
    search = PackingSearch(LogDistances(), None, 0.5, -math.inf, clock, None)
    with _searching(search, *starts.shape[1:]):
        search.run(starts)
    return search.points


@contextmanager
def _searching(search: PackingSearch, rows: int, d: int) -> Iterator[None]:
    """Within the context, small problems run on one thread and Ctrl-C ends the search."""
    threads = one_thread() if small(rows, d) else nullcontext()
    with threads, search.clock.interruptible():
        yield
    search.clock.cut_short = not search.finished


def _sweep(points: Prototypes, clock: Clock, progress: Progress | None) -> None:
    """Sweep in place, reserving time to compute the resulting angle."""
    clock.reserve = measuring_time(points)
    with clock.interruptible():
        clock.cut_short = not sweep_apart(points, stop=clock.stop, progress=progress)


def _warn_if_cut_short(clock: Clock) -> None:
    if clock.cut_short and not clock.interrupted:
        warnings.warn(
            f"time_limit={clock.limit:g} ended the search before one start had finished: this is the best "
            "result so far. Allow more time for a larger angle.",
            stacklevel=3,
        )


def _pairs_above(points: Prototypes, rows: slice, threshold: float) -> Int[Tensor, "pairs 2"]:
    """Pairs (i, j), i in `rows` and j > i, whose cosine reaches the threshold."""
    cosines = points[rows] @ points[rows.start :].T
    return (cosines >= threshold).triu(1).nonzero() + rows.start


def _checked_start(start: Any, k: int, d: int) -> Prototypes:
    """Starting points as unit rows, from a (k, d) tensor, an array or a file."""
    if isinstance(start, str | Path):
        return read_points(Path(start), k, d)
    points = torch.as_tensor(start)
    if points.shape != (k, d):
        raise ValueError(f"start must have shape ({k}, {d}), one point per row, got {tuple(points.shape)}.")
    return on_sphere(points, "start")
