"""Finding packings: many cold starts and a polish where that is cheap, one slow cooling where it is not."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.geometry.descent import (
    Points,
    Potential,
    largest_term,
    lbfgs,
    log_sum_exp,
    weighted_term,
)
from tammes.geometry.polish import Terms, polish
from tammes.geometry.sphere import normalize

Progress = Callable[[float, str], None]
"""Called with the angle so far, in radians, and what is being done."""

# Exponents are given as a = s (1 - cos(bound)): by how many e-folds coinciding points are dearer than points
# that touch. With few points, cold starts left before they converge stay apart where warm ones merge into
# one, and find optima with a small basin (k = 21 in d = 3). With more, warm ones find the order cold ones
# freeze out of (k = 120 in d = 4).
_COLD = ((32.0, 80), (256.0, 100))
_WARM = ((4.0, 60), (32.0, 60), (256.0, 100))
_FEW = 32
_FINAL = 256.0
_WARMEST, _COLDEST, _COOLING = 4.0, 2.0**18, 4.0
_ITERATIONS = 300
# Linear programs over more moves than this take longer than descent does.
_SMALL = 800
_EFFORT = 500_000
_BATCH = 2**22
_POLISHED = 10
_SAME = 1e-5
_CLEARLY = 0.01
_MET = 1e-12


class Clock:
    """Time since the start; tells when to stop, by the limit or because of Ctrl-C."""

    def __init__(self, limit: float | None) -> None:
        self.start = time.perf_counter()
        self.limit = math.inf if limit is None else limit
        self.reserve = 0.0
        self.interrupted = False

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def stop(self) -> bool:
        return self.interrupted or self.seconds >= self.limit - self.reserve

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within, the first Ctrl-C only asks to stop; a second one interrupts as usual."""
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
class Search:
    """Lowers the largest term of a potential over unit vectors, and remembers the best it has seen.

    Attributes:
        potential: the terms, for descent of many starts at once.
        terms: the same terms, for the polish; None to go without.
        softness: the unit of exponents, 1 - cos(bound).
        goal: what the largest term cannot fall below; the search ends when it gets there.
        clock: when to stop.
        progress: told of the best so far.
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
    points: Float[Tensor, "rows d"] = field(init=False)
    value: float = math.inf
    finished: bool = False

    def run(self, starts: Points) -> None:
        """Search from `starts` until done, out of time or interrupted."""
        if small(*starts.shape[1:]):
            self._many_starts(starts)
        else:
            self._one_by_one(starts)

    def _many_starts(self, starts: Points) -> None:
        """Descend all starts at once, then polish the most promising ones that differ."""
        self._offer(starts)
        size = max(1, _BATCH // starts.shape[1] ** 2)
        reached = torch.cat([self._descend_all(batch) for batch in starts.split(size)])
        self.finished = not self.clock.stop()
        for promise, start in zip(*self._promising(reached), strict=True):
            done = self.value <= max(self.goal + _MET, float(promise) - _CLEARLY * self.softness)
            if done or self.clock.stop():
                break
            self._tell("polishing")
            self._finish(start)

    def _one_by_one(self, starts: Points) -> None:
        """Cool each start from warm to cold: of a large problem, one is work enough."""
        for start in starts.split(1):
            self._offer(start)
            self._cool(start, _WARMEST)

    def _descend_all(self, points: Points) -> Points:
        self._tell(f"descending {len(points)} starts")
        for exponent, iterations in _COLD if points.shape[1] <= _FEW else _WARM:
            points = self._descend(points, exponent, iterations)
        self._offer(points)
        return points

    def _descend(self, points: Points, exponent: float, iterations: int) -> Points:
        return lbfgs(
            log_sum_exp(self.potential, exponent / self.softness),
            points,
            iterations=iterations,
            tolerance=1e-5 * self.softness / exponent,
            stop=self.clock.stop,
        )

    def _promising(
        self, points: Points
    ) -> tuple[Float[Tensor, " promising"], Float[Tensor, "promising rows d"]]:
        """What starts promise, in rising order, and the starts; one of each kind."""
        promise = weighted_term(self.potential, points, _FINAL / self.softness)
        promise, order = promise.sort()
        fresh = promise.diff(prepend=promise.new_tensor([-math.inf])) > _SAME * self.softness
        return promise[fresh][:_POLISHED], points[order[fresh][:_POLISHED]]

    def _finish(self, start: Float[Tensor, "rows d"]) -> None:
        if self.terms is None:
            self._cool(start[None], _FINAL * _COOLING)
            return
        points = polish(start.numpy(), self.terms, target=self.value, stop=self.clock.stop)
        self._offer(torch.from_numpy(points)[None])

    def _cool(self, points: Points, exponent: float) -> None:
        """Descend at growing exponents, until the terms near the largest are equal as far as one can see."""
        while exponent <= _COLDEST and not self.clock.stop():
            self._tell(f"descending with s = {exponent / self.softness:.0f}")
            points = self._descend(points, exponent, _ITERATIONS)
            self._offer(points)
            exponent *= _COOLING
        self.finished |= not self.clock.stop()

    def _tell(self, what: str) -> None:
        if self.progress is not None:
            self.progress(self.potential.angle(self.value), what)

    def _offer(self, points: Points) -> None:
        values = largest_term(self.potential, points)
        first = int(values.argmin())
        if float(values[first]) < self.value:
            self.points, self.value = points[first], float(values[first])


def small(rows: int, d: int) -> bool:
    """Whether many starts and linear programs are worth their time."""
    return rows * (d - 1) <= _SMALL


def random_starts(restarts: int | None, rows: int, d: int, seed: int) -> Points:
    """Points drawn evenly from the sphere, the same for the same seed; float64 for small problems.

    By default as many starts as are worth their time: small problems have more optima than a few starts
    find, large ones take long and differ little.
    """
    if restarts is None:
        restarts = max(1, min(2 * rows * (d - 1) * (d - 2), _EFFORT // rows**2)) if small(rows, d) else 1
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float64 if small(rows, d) else torch.float32
    return normalize(torch.randn(restarts, rows, d, generator=generator, dtype=dtype))
