"""Descent over points on spheres: L-BFGS for a batch of starts at once, and the energies of packings."""

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tammes.geometry.sphere import normalize, tangent

Points = Float[Tensor, "starts rows d"]
PerStart = Float[Tensor, " starts"]
Pairs = Float[Tensor, "starts first second"]
Objective = Callable[[Points], tuple[PerStart, Points]]
"""The value at each start and its Euclidean gradient."""

_ARMIJO = 1e-4
_SHRINK = 0.3
_LONGEST_STEP = 0.3
_CHECK_EVERY = 10
_BLOCK = 2**22


@runtime_checkable
class Potential(Protocol):
    """Functions of the points of each start, in a square matrix; descent lowers the largest of them."""

    def size(self, points: Points) -> int:
        """Rows of the matrix."""
        ...

    def terms(self, points: Points, rows: slice) -> Pairs:
        """Their values in some rows of the matrix, minus infinity on the diagonal."""
        ...

    def add_gradient(self, total: Points, points: Points, rows: slice, shares: Pairs) -> None:
        """Add to `total` the gradient of the terms in these rows, weighted by `shares`."""
        ...

    def angle(self, largest: float) -> float:
        """The class margin, in radians, that goes with the largest term."""
        ...


class Cosines:
    """The cosine of every pair; the largest is that of the class margin."""

    def size(self, points: Points) -> int:
        return points.shape[1]

    def terms(self, points: Points, rows: slice) -> Pairs:
        return _without_diagonal(points[:, rows] @ points.mT, rows)

    def add_gradient(self, total: Points, points: Points, rows: slice, shares: Pairs) -> None:
        # The matrix is symmetric, so what a row does to the others comes with their rows.
        total[:, rows] += 2 * shares @ points

    def angle(self, largest: float) -> float:
        return math.acos(max(-1.0, min(largest, 1.0)))


class LogDistances:
    r""":math:`-\log \|w_i - w_j\|` of every pair: under `log_sum_exp` the Riesz energy (paper, eq. 2.4).

    .. math:: \frac{1}{t} \log \sum_{i \ne j} \|w_i - w_j\|^{-t}
    """

    def size(self, points: Points) -> int:
        return points.shape[1]

    def terms(self, points: Points, rows: slice) -> Pairs:
        return _without_diagonal(self._squares(points, rows).log().div_(-2), rows)

    def add_gradient(self, total: Points, points: Points, rows: slice, shares: Pairs) -> None:
        total[:, rows] += 2 * (shares / self._squares(points, rows)) @ points

    def angle(self, largest: float) -> float:
        return 2 * math.asin(min(math.exp(-largest) / 2, 1.0))

    def _squares(self, points: Points, rows: slice) -> Pairs:
        return (2 - 2 * points[:, rows] @ points.mT).clamp_min_(torch.finfo(points.dtype).tiny)


class NegativeMargins:
    r""":math:`(w_j - w_i) \cdot z_i` with one feature per class; the largest is minus gamma_min.

    The points are the k prototypes followed by the k features. Under `log_sum_exp` this is the left side
    of the paper's eq. 3.6, LM-Softmax before its mean over samples.
    """

    def size(self, points: Points) -> int:
        return points.shape[1] // 2

    def terms(self, points: Points, rows: slice) -> Pairs:
        weight, features = points.chunk(2, dim=1)
        own = (features[:, rows] * weight[:, rows]).sum(2, keepdim=True)
        return _without_diagonal(features[:, rows] @ weight.mT - own, rows)

    def add_gradient(self, total: Points, points: Points, rows: slice, shares: Pairs) -> None:
        weight, features = points.chunk(2, dim=1)
        to_weight, to_features = total.chunk(2, dim=1)
        sums = shares.sum(2, keepdim=True)
        to_weight += shares.mT @ features[:, rows]
        to_weight[:, rows] -= sums * features[:, rows]
        to_features[:, rows] += shares @ weight - sums * weight[:, rows]

    def angle(self, largest: float) -> float:
        return math.acos(max(-1.0, min(1 + largest, 1.0)))


def log_sum_exp(potential: Potential, scale: float) -> Objective:
    r""":math:`\frac{1}{s} \log \sum e^{s u}` over the terms u, which tends to the largest as s grows.

    The terms are visited block by block of rows, and what was summed is rescaled when a larger one turns up.
    """

    def objective(points: Points) -> tuple[PerStart, Points]:
        top = points.new_full((len(points), 1, 1), -math.inf)
        total, gradient = torch.zeros_like(top), torch.zeros_like(points)
        for rows in _row_blocks(potential, points):
            terms = potential.terms(points, rows)
            above = torch.maximum(top, terms.amax((1, 2), keepdim=True))
            fade = ((top - above) * scale).exp()
            shares = terms.sub_(above).mul_(scale).exp_()
            total = total * fade + shares.sum((1, 2), keepdim=True)
            potential.add_gradient(gradient.mul_(fade), points, rows, shares)
            top = above
        return (top + total.log() / scale).flatten(), gradient.div_(total)

    return objective


def weighted_term(potential: Potential, points: Points, scale: float) -> PerStart:
    r"""The mean term with the weights :math:`e^{s u}`: what descent will find when it goes on from here.

    Where `log_sum_exp` is least the weighted gradients cancel, so this is the value of the Lagrangian of
    the problem that s tends to. It is off by the square of the distance to the optimum, while the largest
    term is off by the distance itself: it tells good starts from bad ones long before they converge.
    """
    terms = potential.terms(points, slice(None))
    shares = (terms * scale).flatten(1).softmax(1)
    return (shares * terms.flatten(1).nan_to_num(neginf=0.0)).sum(1)


def largest_term(potential: Potential, points: Points) -> PerStart:
    """The largest term of each start."""
    maxima = [potential.terms(points, rows).amax((1, 2)) for rows in _row_blocks(potential, points)]
    return torch.stack(maxima).amax(0)


def _row_blocks(potential: Potential, points: Points) -> list[slice]:
    """Slices of the matrix of terms, few enough rows each that a block of all starts stays small."""
    size = potential.size(points)
    height = max(1, _BLOCK // (len(points) * size))
    return [slice(first, min(first + height, size)) for first in range(0, size, height)]


def _without_diagonal(block: Pairs, rows: slice) -> Pairs:
    block.diagonal(rows.start or 0, dim1=1, dim2=2).fill_(-math.inf)
    return block


def lbfgs(
    objective: Objective,
    points: Points,
    *,
    iterations: int,
    tolerance: float = 0.0,
    history: int = 8,
    stop: Callable[[], bool] = lambda: False,
) -> Points:
    """Descend `objective` from every start in the batch, rows of `points` staying on the unit sphere.

    Each start has its own step: where the value did not fall enough, the start waits and its step shrinks.
    Ends after `iterations`, when ten of them lowered no value by more than `tolerance`, or on `stop()`.
    """
    value, gradient = _on_sphere(objective, points)
    memory = _Memory(history)
    direction = _limited(-gradient)
    step = torch.ones_like(value)
    before = value
    for iteration in range(iterations):
        if stop():
            break
        trial = normalize(points + _wide(step) * direction)
        trial_value, trial_gradient = _on_sphere(objective, trial)
        slope = _dot(gradient, direction)
        accepted = trial_value <= value + _ARMIJO * step * slope
        keep = _wide(accepted)
        memory.add(trial - points, trial_gradient - gradient, accepted)
        points = torch.where(keep, trial, points)
        gradient = torch.where(keep, trial_gradient, gradient)
        value = torch.where(accepted, trial_value, value)
        direction = torch.where(keep, _limited(memory.direction(points, gradient)), direction)
        step = torch.where(accepted, 1.0, _SHRINK * step)
        if iteration % _CHECK_EVERY == _CHECK_EVERY - 1:
            if (before - value).max() <= tolerance:
                break
            before = value
    return points


class _Memory:
    """The last steps and changes of gradient of every start, and the L-BFGS direction they give."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.pairs: list[tuple[Points, Points, PerStart]] = []
        self.curvature: PerStart | None = None

    def add(self, step: Points, change: Points, accepted: Bool[Tensor, " starts"]) -> None:
        """Remember a step where it was `accepted` and the objective curved upwards along it."""
        product, square = _dot(step, change), _dot(change, change)
        useful = accepted & (product > 1e-10 * square)
        self.pairs.append((step, change, torch.where(useful, 1 / product, 0.0)))
        del self.pairs[: -self.history]
        fresh = product / square
        previous = fresh if self.curvature is None else self.curvature
        self.curvature = torch.where(useful, fresh, previous)

    def direction(self, points: Points, gradient: Points) -> Points:
        """Minus the inverse Hessian's estimate times the gradient; minus the latter where that climbs."""
        assert self.curvature is not None
        result, weights = -gradient, []
        for step, change, inverse in reversed(self.pairs):
            weights.append(inverse * _dot(step, result))
            result = result - _wide(weights[-1]) * change
        result = _wide(self.curvature) * result
        for (step, change, inverse), weight in zip(self.pairs, reversed(weights), strict=True):
            result = result + _wide(weight - inverse * _dot(change, result)) * step
        result = tangent(points, result)
        falls = (_dot(result, gradient) < 0) & torch.isfinite(self.curvature)
        return torch.where(_wide(falls), result, -gradient)


def _on_sphere(objective: Objective, points: Points) -> tuple[PerStart, Points]:
    value, gradient = objective(points)
    return value, tangent(points, gradient)


def _limited(direction: Points) -> Points:
    """`direction`, shortened where it would move a point by more than the longest step."""
    longest = torch.linalg.vector_norm(direction, dim=2).amax(1)
    return direction * _wide(_LONGEST_STEP / longest.clamp_min(_LONGEST_STEP))


def _dot(a: Points, b: Points) -> PerStart:
    return (a * b).sum((1, 2))


def _wide(x: Tensor) -> Tensor:
    return x[:, None, None]
