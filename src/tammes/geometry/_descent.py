"""L-BFGS over points on the sphere, batched over starts, and the potentials used for packings."""

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tammes.geometry.sphere import normalize, tangent

Points = Float[Tensor, "starts rows d"]
PerStart = Float[Tensor, " starts"]
PairValues = Float[Tensor, "starts first second"]
ValueAndGradient = Callable[[Points], tuple[PerStart, Points]]
"""Returns the value of each start and its Euclidean gradient."""

_ARMIJO = 1e-4
_SHRINK = 0.3
_LONGEST_STEP = 0.3
_CHECK_EVERY = 10
_BLOCK = 2**22


@runtime_checkable
class Potential(Protocol):
    """A square matrix of functions of the points of each start; descent minimizes the largest entry."""

    def size(self, points: Points) -> int:
        """Number of rows of the matrix."""
        ...

    def terms(self, points: Points, rows: slice) -> PairValues:
        """The given rows of the matrix, minus infinity on the diagonal."""
        ...

    def add_gradient(self, total: Points, points: Points, rows: slice, shares: PairValues) -> None:
        """Add the gradient of these rows' terms, weighted by `shares`, to `total`."""
        ...

    def angle(self, largest: float) -> float:
        """The class margin, in radians, for a given largest term."""
        ...


class Cosines:
    """The cosine of every pair; the largest is the cosine of the class margin."""

    def size(self, points: Points) -> int:
        return points.shape[1]

    def terms(self, points: Points, rows: slice) -> PairValues:
        return _without_diagonal(points[:, rows] @ points.mT, rows)

    def add_gradient(self, total: Points, points: Points, rows: slice, shares: PairValues) -> None:
        # The matrix is symmetric, so the gradient w.r.t. the other points comes with their rows.
        total[:, rows] += 2 * shares @ points

    def angle(self, largest: float) -> float:
        return math.acos(max(-1.0, min(largest, 1.0)))


class LogDistances:
    r""":math:`-\log \|w_i - w_j\|` of every pair: under `log_sum_exp` the Riesz energy (paper, eq. 2.4).

    .. math:: \frac{1}{t} \log \sum_{i \ne j} \|w_i - w_j\|^{-t}
    """

    def size(self, points: Points) -> int:
        return points.shape[1]

    def terms(self, points: Points, rows: slice) -> PairValues:
        return _without_diagonal(self._squares(points, rows).log().div_(-2), rows)

    def add_gradient(self, total: Points, points: Points, rows: slice, shares: PairValues) -> None:
        total[:, rows] += 2 * (shares / self._squares(points, rows)) @ points

    def angle(self, largest: float) -> float:
        return 2 * math.asin(min(math.exp(-largest) / 2, 1.0))

    def _squares(self, points: Points, rows: slice) -> PairValues:
        return (2 - 2 * points[:, rows] @ points.mT).clamp_min_(torch.finfo(points.dtype).tiny)


class NegativeMargins:
    r""":math:`(w_j - w_i) \cdot z_i` with one feature per class; the largest is minus gamma_min.

    The points are the k prototypes followed by the k features. Under `log_sum_exp` this is the left-hand
    side of the paper's eq. 3.6: LM-Softmax with the "lse" reduction.
    """

    def size(self, points: Points) -> int:
        return points.shape[1] // 2

    def terms(self, points: Points, rows: slice) -> PairValues:
        weight, features = points.chunk(2, dim=1)
        own = (features[:, rows] * weight[:, rows]).sum(2, keepdim=True)
        return _without_diagonal(features[:, rows] @ weight.mT - own, rows)

    def add_gradient(self, total: Points, points: Points, rows: slice, shares: PairValues) -> None:
        weight, features = points.chunk(2, dim=1)
        to_weight, to_features = total.chunk(2, dim=1)
        sums = shares.sum(2, keepdim=True)
        to_weight += shares.mT @ features[:, rows]
        to_weight[:, rows] -= sums * features[:, rows]
        to_features[:, rows] += shares @ weight - sums * weight[:, rows]

    def angle(self, largest: float) -> float:
        return math.acos(max(-1.0, min(1 + largest, 1.0)))


def log_sum_exp(potential: Potential, scale: float) -> ValueAndGradient:
    r""":math:`\frac{1}{s} \log \sum e^{s u}` over the terms u, which tends to the largest term as s grows.

    Computed by blocks of rows; the running sum is rescaled whenever a larger term appears.
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
    r"""Mean of the terms u weighted by :math:`e^{s u}`: an estimate of the value that descent will reach.

    At a minimum of `log_sum_exp` the weighted gradients cancel, so this is the Lagrangian of the limiting
    problem. Its error is quadratic in the distance to the optimum, whereas the error of the largest term is
    linear, so it separates good starts from bad ones long before they converge.
    """
    terms = potential.terms(points, slice(None))
    shares = (terms * scale).flatten(1).softmax(1)
    return (shares * terms.flatten(1).nan_to_num(neginf=0.0)).sum(1)


def largest_term(potential: Potential, points: Points) -> PerStart:
    """The largest term of each start."""
    maxima = [potential.terms(points, rows).amax((1, 2)) for rows in _row_blocks(potential, points)]
    return torch.stack(maxima).amax(0)


def _row_blocks(potential: Potential, points: Points) -> list[slice]:
    """Row slices of the term matrix, small enough to bound the memory of a block over all starts."""
    size = potential.size(points)
    height = max(1, _BLOCK // (len(points) * size))
    return [slice(first, min(first + height, size)) for first in range(0, size, height)]


def _without_diagonal(block: PairValues, rows: slice) -> PairValues:
    block.diagonal(rows.start or 0, dim1=1, dim2=2).fill_(-math.inf)
    return block


def lbfgs(
    objective: ValueAndGradient,
    points: Points,
    *,
    iterations: int,
    tolerance: float = 0.0,
    history: int = 8,
    stop: Callable[[], bool] = lambda: False,
) -> Points:
    """Minimize `objective` from every start in the batch, keeping the rows of `points` on the unit sphere.

    Each start has its own step size, which shrinks whenever its value has not decreased enough. Stops after
    `iterations`, when ten iterations improved no start by more than `tolerance`, or when `stop()` is true.
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
    """The latest steps and gradient differences of every start, and the L-BFGS direction they imply."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.pairs: list[tuple[Points, Points, PerStart]] = []
        self.curvature: PerStart | None = None

    def add(self, step: Points, change: Points, accepted: Bool[Tensor, " starts"]) -> None:
        """Store a step for starts where it was `accepted` and has positive curvature."""
        product, square = _dot(step, change), _dot(change, change)
        useful = accepted & (product > 1e-10 * square)
        self.pairs.append((step, change, torch.where(useful, 1 / product, 0.0)))
        del self.pairs[: -self.history]
        fresh = product / square
        previous = fresh if self.curvature is None else self.curvature
        self.curvature = torch.where(useful, fresh, previous)

    def direction(self, points: Points, gradient: Points) -> Points:
        """The quasi-Newton direction, or the negative gradient where that is not a descent direction."""
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


def _on_sphere(objective: ValueAndGradient, points: Points) -> tuple[PerStart, Points]:
    value, gradient = objective(points)
    return value, tangent(points, gradient)


def _limited(direction: Points) -> Points:
    """`direction`, shortened so that no point moves by more than the maximum step."""
    longest = torch.linalg.vector_norm(direction, dim=2).amax(1)
    return direction * _wide(_LONGEST_STEP / longest.clamp_min(_LONGEST_STEP))


def _dot(a: Points, b: Points) -> PerStart:
    return (a * b).sum((1, 2))


def _wide(x: Tensor) -> Tensor:
    return x[:, None, None]
