"""Search for packings: many polished starts for small problems, a single annealed one for large ones."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.geometry._descent import (
    Points,
    Potential,
    largest_term,
    lbfgs,
    log_sum_exp,
    weighted_term,
)
from tammes.geometry._packing.polish import Terms, polish
from tammes.geometry.sphere import normalize

Progress = Callable[[float, str], None]
"""Called with the best angle so far, in radians, and a description of the current step."""

Further = Callable[
    [Float[Tensor, "rows d"]], tuple[Float[Tensor, "fresh rows d"], Float[Tensor, "moved rows d"]]
]
"""From the best points so far: starts to anneal, and starts that are already too good for that."""

# Exponents are a = s (1 - cos(bound)): coinciding points cost e^a times as much as touching ones. Large a is
# cold, small a is warm. With few points, cold starts stopped before convergence keep distinct configurations
# where warm ones merge, and find optima with a small basin (k = 21 in d = 3). With more points, warm starts
# find the global order that cold ones miss (k = 120 in d = 4).
_COLD = ((32.0, 80), (256.0, 100))
_WARM = ((4.0, 60), (32.0, 60), (256.0, 100))
_FEW = 32
_FINAL = 256.0
_WARMEST, _COLDEST, _COOLING = 4.0, 2.0**18, 4.0
_ITERATIONS = 300
# Linear programs with more variables than this take longer than descent.
_SMALL = 800
_EFFORT = 500_000
_BATCH = 2**22
_POLISHED = 10
_SAME = 1e-5
_CLEARLY = 0.01
# Linear programs with more variables than this are slow, so descent first refines the candidates.
_EASY = 60
_SHARPER = ((1024.0, 100), (4096.0, 100))
_SHARPLY = 2e-4
# The search ends after this many rounds of further starts without improvement, and not before every point
# of the best packing has had its chance of being moved alone, as eight are in a round.
_PATIENCE = 3
_MOVED_ALONE = 8
_BETTER = 1e-9
_MET = 1e-12


class Clock:
    """Time since the start, and whether to stop because of the limit or Ctrl-C."""

    def __init__(self, limit: float | None) -> None:
        self.start = time.perf_counter()
        self.limit = math.inf if limit is None else limit
        self.reserve = 0.0
        self.interrupted = False
        self.cut_short = False

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    @property
    def left(self) -> float:
        """Seconds until the limit; 0 after Ctrl-C."""
        return 0.0 if self.interrupted else max(0.0, self.limit - self.reserve - self.seconds)

    def stop(self) -> bool:
        return self.left <= 0

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within the context, the first Ctrl-C requests a stop, and a second one interrupts as usual."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: object) -> None:
            self.interrupted = True
            signal.signal(signal.SIGINT, usual)

        usual = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)


@dataclass
class PackingSearch:
    """Minimizes the largest term of a potential over unit vectors, and keeps the best result.

    Attributes:
        potential: the terms, for descent of many starts at once.
        terms: the same terms, for polishing; None to skip it.
        softness: the unit of exponents, 1 - cos(bound).
        goal: lower bound of the largest term; the search ends when it is reached.
        clock: when to stop.
        progress: called with the best value so far.
        further: creates more starts from the best points so far; None for no more.
        points: the best so far.
        value: their largest term.
        finished: whether at least one start has run to its end.
    """

    potential: Potential
    terms: Terms | None
    softness: float
    goal: float
    clock: Clock
    progress: Progress | None
    further: Further | None = None
    points: Float[Tensor, "rows d"] = field(init=False)
    value: float = math.inf
    finished: bool = False

    @property
    def met(self) -> bool:
        """Whether the goal is reached, so that the result is optimal."""
        return self.value <= self.goal + _MET

    def run(self, starts: Points, known: Sequence[Float[Tensor, "rows d"]] = ()) -> None:
        """Search from `starts` until done, out of time or interrupted; no worse than the `known` points."""
        for points in known:
            self.offer(points[None].to(starts.device))
        self.offer(starts)
        if self.met:
            self.finished = True
        elif small(*starts.shape[1:]):
            self._many_starts(starts)
        else:
            self._one_by_one(starts)

    def improve(self, start: Points) -> None:
        """Descend from good points, and never return worse ones."""
        self.offer(start)
        if not small(*start.shape[1:]):
            self._cool(start, _FINAL)
        else:
            self._polish_all(self._descend_all(start, _COLD[1:]))
            self.finished = not self.clock.stop()
            self._go_on()

    def offer(self, points: Points) -> None:
        """Remember the best of `points` if it is the best so far."""
        values = largest_term(self.potential, points)
        first = int(values.argmin())
        if float(values[first]) < self.value:
            self.points, self.value = points[first], float(values[first])

    def _many_starts(self, starts: Points) -> None:
        """Descend all starts at once, polish the most promising distinct ones, then the rest."""
        reached = self._descend_all(starts, _COLD if starts.shape[1] <= _FEW else _WARM)
        self.finished = not self.clock.stop()
        self._polish_all(reached)
        self._go_on()

    def _go_on(self) -> None:
        """Run rounds of further starts until several in a row bring no improvement."""
        stale, patience = 0, max(_PATIENCE, math.ceil(len(self.points) / _MOVED_ALONE))
        while self.further is not None and stale < patience and not (self.met or self.clock.stop()):
            before = self.value
            fresh, moved = self.further(self.points)
            reached = [self._descend_all(fresh, _WARM), self._descend_all(moved, _COLD)]
            self._polish_all(torch.cat(reached))
            stale = 0 if self.value < before - _BETTER * self.softness else stale + 1

    def _one_by_one(self, starts: Points) -> None:
        """Anneal each start from warm to cold; for large problems one start is enough."""
        for start in starts.split(1):
            self._cool(start, _WARMEST)

    def _descend_all(self, starts: Points, schedule: tuple[tuple[float, int], ...]) -> Points:
        """Descend from all starts along a schedule of exponents, in batches that fit in memory."""
        reached = []
        for points in starts.split(max(1, _BATCH // starts.shape[1] ** 2)):
            self._tell(f"descending {len(points)} starts")
            for exponent, iterations in schedule:
                points = self._descend(points, exponent, iterations)
            self.offer(points)
            reached.append(points)
        return torch.cat(reached)

    def _polish_all(self, reached: Points) -> None:
        """Polish the most promising distinct candidates, best first, while they can improve the result."""
        promise, points = self._promising(reached)
        clearly = _CLEARLY
        if not few_moves(*points.shape[1:]) and self.terms is not None:
            promise, points = self._promising(self._descend_all(points, _SHARPER), _SHARPER[-1][0])
            clearly = _SHARPLY
        for value, start in zip(promise, points, strict=True):
            if self.met or self.clock.stop() or self.value <= float(value) - clearly * self.softness:
                break
            self._tell("polishing")
            self._finish(start)

    def _descend(self, points: Points, exponent: float, iterations: int) -> Points:
        return lbfgs(
            log_sum_exp(self.potential, exponent / self.softness),
            points,
            iterations=iterations,
            tolerance=1e-5 * self.softness / exponent,
            stop=self.clock.stop,
        )

    def _promising(
        self, points: Points, exponent: float = _FINAL
    ) -> tuple[Float[Tensor, " promising"], Float[Tensor, "promising rows d"]]:
        """The estimated final values of the distinct starts in ascending order, and those starts."""
        promise = weighted_term(self.potential, points, exponent / self.softness)
        promise, order = promise.sort()
        fresh = promise.diff(prepend=promise.new_tensor([-math.inf])) > _SAME * self.softness
        return promise[fresh][:_POLISHED], points[order[fresh][:_POLISHED]]

    def _finish(self, start: Float[Tensor, "rows d"]) -> None:
        if self.terms is None:
            self._cool(start[None], _FINAL * _COOLING)
            return
        points = polish(start.numpy(), self.terms, target=self.value, time_left=lambda: self.clock.left)
        self.offer(torch.from_numpy(points)[None])

    def _cool(self, points: Points, exponent: float) -> None:
        """Descend at growing exponents until the largest terms are equal up to rounding."""
        while exponent <= _COLDEST and not self.clock.stop():
            self._tell(f"descending with s = {exponent / self.softness:.0f}")
            points = self._descend(points, exponent, _ITERATIONS)
            self.offer(points)
            exponent *= _COOLING
        self.finished |= not self.clock.stop()

    def _tell(self, what: str) -> None:
        if self.progress is not None:
            self.progress(self.potential.angle(self.value), what)


def small(rows: int, d: int) -> bool:
    """Whether the problem is small enough for many starts and linear programs."""
    return rows * (d - 1) <= _SMALL


def few_moves(rows: int, d: int) -> bool:
    """Whether random starts alone find the best packing and linear programs are instantaneous."""
    return rows * (d - 1) <= _EASY


def default_restarts(rows: int, d: int) -> int:
    """Number of random starts for a problem size.

    Small problems have many local optima; large ones are slow, and their optima differ little.
    """
    return max(1, min(2 * rows * (d - 1) * max(d - 2, 1), _EFFORT // rows**2)) if small(rows, d) else 1


def random_starts(restarts: int | None, rows: int, d: int, seed: int) -> Points:
    """Points drawn uniformly from the sphere, reproducible by seed; float64 for small problems."""
    count = default_restarts(rows, d) if restarts is None else restarts
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float64 if small(rows, d) else torch.float32
    return normalize(torch.randn(count, rows, d, generator=generator, dtype=dtype))
