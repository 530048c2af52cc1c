"""Polish a packing to full precision: minimize the maximum of smooth functions by linear programs.

Near an optimal packing, a few dozen pairs touch and the others are inactive. A linear program over small
moves identifies the pairs that hold the packing (those with a positive multiplier). Newton's method then
equalizes them with a move of minimum norm, so that rotations and rattlers, which the program leaves
undetermined, stay in place. Convergence is quadratic: four programs reach rounding error.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

Vectors = Float[np.ndarray, "rows d"]
Values = Float[np.ndarray, " terms"]

# Programs with more variables than this are solved by the interior-point method, three times faster at 400.
_INTERIOR = 120
# The simplex method that cleans up after it can cycle for ever (softmax code, k = 31, d = 6): it is cut off.
_CYCLING = 10_000
_LIMIT_REACHED = 1
_CONVERGED = 1e-14
_SMALLEST_RADIUS = 1e-10


@runtime_checkable
class Terms(Protocol):
    """Functions of unit vectors whose maximum is minimized."""

    def values(self, points: Vectors) -> Values: ...

    def gradients(
        self, points: Vectors, chosen: Int[np.ndarray, " chosen"]
    ) -> Float[np.ndarray, "chosen rows d"]: ...


class CosineTerms:
    """The cosines of all pairs of points."""

    def __init__(self, rows: int) -> None:
        self.first, self.second = np.triu_indices(rows, 1)

    def values(self, points: Vectors) -> Values:
        return (points @ points.T)[self.first, self.second]

    def gradients(
        self, points: Vectors, chosen: Int[np.ndarray, " chosen"]
    ) -> Float[np.ndarray, "chosen rows d"]:
        i, j, term = self.first[chosen], self.second[chosen], np.arange(len(chosen))
        gradients = np.zeros((len(chosen), *points.shape))
        gradients[term, i], gradients[term, j] = points[j], points[i]
        return gradients


class MarginTerms:
    r""":math:`(w_j - w_i) \cdot z_i` of k prototypes, then k features: the largest is minus gamma_min."""

    def __init__(self, classes: int) -> None:
        self.own, self.other = np.nonzero(~np.eye(classes, dtype=bool))

    def values(self, points: Vectors) -> Values:
        weight, features = np.split(points, 2)
        cosines = features @ weight.T
        return cosines[self.own, self.other] - cosines[self.own, self.own]

    def gradients(
        self, points: Vectors, chosen: Int[np.ndarray, " chosen"]
    ) -> Float[np.ndarray, "chosen rows d"]:
        weight, features = np.split(points, 2)
        i, j, term = self.own[chosen], self.other[chosen], np.arange(len(chosen))
        gradients = np.zeros((len(chosen), *points.shape))
        gradients[term, j], gradients[term, i] = features[i], -features[i]
        gradients[term, len(weight) + i] = weight[j] - weight[i]
        return gradients


def polish(
    points: Vectors,
    terms: Terms,
    *,
    target: float = math.inf,
    radius: float = 0.02,
    iterations: int = 40,
    time_left: Callable[[], float] = lambda: math.inf,
) -> Vectors:
    """Minimize the largest of `terms` to rounding error, from points near a local optimum.

    Args:
        points: unit rows.
        terms: the functions.
        target: stop early once the maximum clearly cannot fall below this.
        radius: initial trust-region radius of the linear model, per axis; adapted.
        iterations: maximum number of linear programs.
        time_left: returns the remaining seconds; called before each program that is solved.
    """
    top = terms.values(points).max()
    for iteration in range(iterations):
        if time_left() <= 0:
            break
        basis = _tangent_bases(points)
        rates, slack = _active(points, terms, basis, radius)
        program = _linear_program(rates, slack, radius, time_left)
        if program is None:
            radius /= 4
            continue
        move, gain, holding = program
        if gain < _CONVERGED or (iteration > 1 and top - 4 * gain > target):
            break
        newton = _equalise(rates[holding], slack[holding])
        moves = [move] if np.abs(newton).max() > 10 * radius else [move, newton]
        trials = [_moved(points, basis, move) for move in moves]
        tops = [terms.values(trial).max() for trial in trials]
        best = int(np.argmin(tops))
        gained = top - tops[best]
        if gained > 0:
            points, top = trials[best], tops[best]
        if best == 1 and gained > 0:
            radius = min(radius, max(10 * np.abs(newton).max(), 1e-7))
        elif gained < gain / 4:
            radius /= 4
        if radius < _SMALLEST_RADIUS:
            break
    return points


def _active(
    points: Vectors, terms: Terms, basis: Float[np.ndarray, "rows d-1 d"], radius: float
) -> tuple[Float[np.ndarray, "active moves"], Float[np.ndarray, " active"]]:
    """Terms that a move within the radius could make the largest: their gradients and slacks."""
    values = terms.values(points)
    reach = 4 * radius * math.sqrt(basis.shape[1])
    chosen = np.flatnonzero(values >= values.max() - reach)
    rates = np.einsum("mrd,rad->mra", terms.gradients(points, chosen), basis)
    return rates.reshape(len(chosen), -1), values.max() - values[chosen]


def _linear_program(
    rates: Float[np.ndarray, "active moves"],
    slack: Float[np.ndarray, " active"],
    radius: float,
    time_left: Callable[[], float],
) -> tuple[Float[np.ndarray, " moves"], float, Int[np.ndarray, " holding"]] | None:
    """The move within the radius that minimizes the linear model, its gain, and the active terms.

    None if the solver fails or runs out of time. Solved in units of the radius, so that the solver's
    tolerances mean the same at every scale.
    """
    from scipy.optimize import linprog

    count, moves = rates.shape
    cost = np.append(np.zeros(moves), 1.0)
    limits = np.column_stack([np.append(-np.ones(moves), -np.inf), np.append(np.ones(moves), np.inf)])
    solve = partial(
        linprog, cost, A_ub=np.column_stack([rates, -np.ones(count)]), b_ub=slack / radius, bounds=limits
    )
    solution = None
    if moves > _INTERIOR:
        solution = solve(method="highs-ipm", options={"time_limit": time_left(), "maxiter": _CYCLING})
    if solution is None or solution.status == _LIMIT_REACHED:
        solution = solve(method="highs-ds", options={"time_limit": max(0.0, time_left())})
    if solution.x is None or solution.status == _LIMIT_REACHED:
        return None
    holding = np.flatnonzero(solution.ineqlin.marginals < -1e-9)
    return solution.x[:-1] * radius, -solution.x[-1] * radius, holding


def _equalise(
    rates: Float[np.ndarray, "holding moves"], slack: Float[np.ndarray, " holding"]
) -> Float[np.ndarray, " moves"]:
    """The shortest move after which, in the linear model, all terms are equal."""
    from scipy.linalg import lstsq

    system = np.column_stack([rates, -np.ones(len(rates))])
    solution: Any = lstsq(system, slack, cond=1e-11, lapack_driver="gelsy")
    return solution[0][:-1]


def _tangent_bases(points: Vectors) -> Float[np.ndarray, "rows d-1 d"]:
    """An orthonormal basis of the tangent space at each point: all but one column of a reflection.

    The reflection takes the first axis, or its opposite, to the point.
    """
    d = points.shape[1]
    normal = points.copy()
    normal[:, 0] += np.where(points[:, 0] < 0, -1.0, 1.0)
    scale = 2 / (normal**2).sum(1)
    reflection = np.eye(d) - scale[:, None, None] * normal[:, :, None] * normal[:, None, :]
    return reflection[:, 1:, :]


def _moved(
    points: Vectors, basis: Float[np.ndarray, "rows d-1 d"], move: Float[np.ndarray, " moves"]
) -> Vectors:
    moved = points + np.einsum("ra,rad->rd", move.reshape(len(points), -1), basis)
    return moved / np.linalg.norm(moved, axis=1, keepdims=True)
