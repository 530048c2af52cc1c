"""Optima of objectives over free (unconstrained) features, found by descent."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common import checks, tensor_checks
from tammes._common.threads import one_thread
from tammes._common.types import Labels, PerClass, Prototypes, Scalar
from tammes.geometry.margins import class_margin, mean_sample_margin
from tammes.geometry.sphere import normalize, safe_norm, tangent
from tammes.losses._engine.dense_statistics import dense
from tammes.losses._text import ObjectiveLike, as_objective
from tammes.losses.arcface import ArcFace
from tammes.losses.combined import CombinedMargin
from tammes.losses.gm_softmax import GMSoftmax
from tammes.losses.hyperspherical_energy import HypersphericalEnergy
from tammes.losses.lm_softmax import LMSoftmax
from tammes.losses.objective import Objective, Term, combine
from tammes.losses.sample_margin import SampleMargin
from tammes.losses.zero_centroid import ZeroCentroid
from tammes.theory._weighted_value import Counts, WeightedValue, check_reduced, checked_counts

_TOGETHER = math.radians(1.0)


class FreeFeatures(NamedTuple):
    """The optimum of an objective over prototypes and free features."""

    points: Prototypes  # prototypes; of unit norm unless weight decay is given
    features: Float[Tensor, "n d"]  # equally many per class, ordered by class
    class_margin: float  # radians
    loss: float
    gradient: (
        float  # final gradient norm of the minimized function: the loss or its logarithm, with kinks smoothed
    )
    seconds: float

    @property
    def labels(self) -> Labels:
        """The class of each feature."""
        k = len(self.points)
        return torch.arange(k).repeat_interleave(len(self.features) // k)

    @property
    def sample_margin(self) -> float:
        """Mean sample margin in cosines, with equal weight for every class."""
        return float(mean_sample_margin(self.features, self.points, self.labels))

    @property
    def merged(self) -> list[list[int]]:
        """Groups of classes whose prototypes coincide within one degree (minority collapse, if rare).

        A class belongs to a group if it coincides with any of its members.
        """
        units = normalize(self.points)
        met = units @ units.T >= math.cos(_TOGETHER)
        groups: list[set[int]] = []
        for row in met:
            classes = set(row.nonzero().flatten().tolist())
            joined = [group for group in groups if group & classes]
            groups = [group for group in groups if not group & classes] + [classes.union(*joined)]
        return sorted(sorted(group) for group in groups if len(group) > 1)


SHARPNESS = (16.0, 64.0, 256.0, 1024.0, 4096.0)
"""Sharpness of the smoothed kinks of an objective in successive stages of descent."""


def free_features(
    objective: ObjectiveLike,
    counts: Counts,
    d: int,
    *,
    per_class: int = 1,
    weight_decay: float | tuple[float, float] | None = None,
    nonnegative: bool = False,
    prototypes: Prototypes | None = None,
    seed: int = 0,
    start: FreeFeatures | None = None,
) -> FreeFeatures:
    r"""Prototypes and features of each class that minimize `objective`, classes weighted by `counts`.

    This is the limit of a network that can place its features anywhere: all samples of a class share one
    optimal feature, so one feature per class is enough (erratum 17: for NormFace this gives the class margins
    of the paper's Table 2 within 0.1 degrees). LDAM uses `counts` as class counts.

    Runs L-BFGS in float64 from several seeded starts and continues from the best until its value stops
    falling. Non-negative losses are minimized in their logarithm, since at a large scale they are flat, with
    gradients as small as 1e-25. Optima tend to lie at kinks: R_sm's where two other classes tie, ArcFace's
    where a feature equals its prototype. Kinks are smoothed with increasing sharpness t: R_sm is replaced by
    LM-Softmax with scale t, at most log(k-1) / t above it, and features are kept at an angle of 1 / t from
    their prototypes. This leaves an error of some hundredths of a degree in the class margin.

    For k > d + 1 there are local optima, as in the Tammes problem; the best of eight starts is returned.
    Without `weight_decay` every term must read cosines: raw norms have no optimum but infinity (Theorem
    3.1) or zero (erratum 11). A warning says when the gradient has not vanished, as with a stiff sum such as
    CosFace(s=64, m=0.35) + 100*R_w, whose terms are 1e-20 and 1.

    Args:
        objective: What is minimized, or its text, as "NormFace(s=5)".
        counts: Number of samples of each class.
        d: Number of dimensions.
        per_class: Number of features of each class; they share its count.
        weight_decay: Adds :math:`\tfrac{a}{2} \|W\|_F^2 + \tfrac{b}{2} \sum_y p_y \overline{\|z_y\|^2}` with
            the classes' shares :math:`p_y` of the samples, so that CE and Focal have an optimum: the
            unconstrained-features problem of the neural-collapse literature. One number for a = b, or (a, b).
        nonnegative: Restrict features to non-negative coordinates, as after a ReLU.
        prototypes: Fixed prototypes (k, d); only features move.
        seed: Seed of the starts.
        start: An earlier result for the same sizes, from which descent continues.

    >>> from tammes.losses import NormFace
    >>> found = free_features(NormFace(scale=5.0), counts=[5000] * 5 + [500] * 5, d=64)
    >>> round(math.degrees(found.class_margin), 2)
    77.81
    """
    k = checks.at_least("The number of classes", len(counts), 2)
    d = checks.at_least("d", d, 2)
    per_class = checks.at_least("per_class", per_class, 1)
    objective = as_objective(objective)
    check_reduced(objective)
    problem = _Problem(
        checked_counts(counts, k),
        per_class,
        _checked_decay(weight_decay),
        nonnegative,
        prototypes is not None,
    )
    if problem.decay is None:
        _check_cosines(objective)
    # The span of the prototypes and one more direction suffice for the features.
    width = d if nonnegative or prototypes is not None else min(d, k + 1)
    stages, starts = _stages(objective), _starts(problem, width, d, seed, prototypes)
    if start is not None:
        # Where an optimum was found, blunter stages would only lead away from it.
        stages, starts = stages[-1:], [torch.cat([start.points, start.features])]
    began = time.perf_counter()
    with one_thread():
        end = _descend(stages, [points[:, :width] for points in starts], problem)
    if not end.gradient <= _CONVERGED:
        warnings.warn(f"{objective} has not converged: its gradient is {end.gradient:.1g}.", stacklevel=2)
    points = torch.nn.functional.pad(end.points, (0, d - width))
    return FreeFeatures(
        points=points[:k],
        features=points[k:],
        class_margin=class_margin(points[:k]).item(),
        loss=problem.value(objective)(points).item(),
        gradient=end.gradient,
        seconds=time.perf_counter() - began,
    )


def _checked_decay(weight_decay: float | tuple[float, float] | None) -> tuple[float, float] | None:
    if weight_decay is None:
        return None
    a, b = weight_decay if isinstance(weight_decay, tuple) else (weight_decay, weight_decay)
    return checks.positive("weight_decay", a), checks.positive("weight_decay", b)


def _checked_prototypes(prototypes: Prototypes, k: int, d: int, *, to_unit: bool) -> Prototypes:
    tensor_checks.check_matrix("prototypes", prototypes)
    if prototypes.shape != (k, d):
        raise ValueError(
            f"prototypes must have shape ({k}, {d}), one for each class, got {tuple(prototypes.shape)}."
        )
    tensor_checks.check_finite("prototypes", prototypes)
    fixed = prototypes.detach().to("cpu", torch.float64)
    return normalize(fixed) if to_unit else fixed


def _check_cosines(objective: Objective) -> None:
    for _, term in objective.weighted_terms:
        if term.need.space != "cosine":
            raise ValueError(
                f"Free features need terms that read cosines, got {term}: its norms would grow or shrink "
                "without bound. Pass weight_decay, or use its normalized form (NormFace for CE, R_w with "
                "normalize=True)."
            )


Value = Callable[[Float[Tensor, "rows width"]], Scalar]
"""The value of an objective at some points."""


class _Problem(NamedTuple):
    """The optimization problem: points are the k prototypes, followed by the features of each class."""

    counts: PerClass
    per_class: int
    decay: tuple[float, float] | None  # of prototypes and of features
    nonnegative: bool
    fixed: bool  # whether the prototypes are

    @property
    def k(self) -> int:
        return len(self.counts)

    def with_features(self, prototypes: Float[Tensor, "k width"]) -> Float[Tensor, "rows width"]:
        """Prototypes and features equal to them, slightly perturbed if a class has several."""
        features = prototypes.repeat_interleave(self.per_class, 0)
        if self.per_class > 1:
            generator = torch.Generator().manual_seed(0)
            features = features + 0.1 * torch.randn(features.shape, dtype=features.dtype, generator=generator)
        return torch.cat([prototypes, features.abs() if self.nonnegative else features])

    def value(self, objective: Objective, lift: float = 0.0) -> Value:
        """The objective as a function of the points, features lifted off the prototypes' space by `lift`."""
        weighted = WeightedValue.of(objective, self.counts, self.per_class)
        targets = torch.arange(self.k).repeat_interleave(self.per_class)[:, None]
        shares = self.counts / self.counts.sum()

        def value(points: Float[Tensor, "rows width"]) -> Scalar:
            prototypes, features = points[: self.k], points[self.k :]
            if lift:
                prototypes = torch.nn.functional.pad(prototypes, (0, 1))
                features = torch.nn.functional.pad(normalize(features), (0, 1), value=lift)
            found = weighted(dense(features, prototypes, targets, weighted.plan))
            if self.decay is None:
                return found
            squares = features.square().sum(1).view(self.k, -1).mean(1)
            return (
                found + self.decay[0] / 2 * prototypes.square().sum() + self.decay[1] / 2 * shares @ squares
            )

        return value

    def finished(self, points: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """Unit rows, unless there is weight decay and norms matter."""
        return points if self.decay is not None else normalize(points)


class _Stage(NamedTuple):
    """The minimized function: an objective, with features lifted off the prototypes' space by `lift`."""

    objective: Objective
    lift: float = 0.0


class _End(NamedTuple):
    points: Float[Tensor, "rows width"]
    value: float
    gradient: float


_ROUGH = 1e-8
"""Relative decrease of the value at which to compare starts or to end a stage."""

_FLAT = 1e-8
"""Largest component of a gradient at which descent ends."""

_TRIALS = 10
"""Most points that a line search tries. At an optimum rounding defeats it, and each further one is wasted."""

_ITERATIONS, _LEG = 3000, 50
"""Most iterations of L-BFGS, and how many until coordinates that depend on the points are renewed."""

_CONVERGED = 1e-3
"""Largest gradient that counts as converged; gradients are of order one, or larger where sharpened."""


def _stages(objective: Objective) -> list[_Stage]:
    """`objective`, or, if it has kinks, a sequence of increasingly sharp smooth approximations."""
    terms = [term for _, term in objective.weighted_terms]
    if not any(_ties_rivals(term) or _has_cusp(term) for term in terms):
        return [_Stage(objective)]
    lifted = any(map(_has_cusp, terms))
    return [
        _Stage(
            combine(
                (c, LMSoftmax(scale=t) if _ties_rivals(term) else term)
                for c, term in objective.weighted_terms
            ),
            lift=1 / t if lifted else 0.0,
        )
        for t in SHARPNESS
    ]


def _ties_rivals(term: Term) -> bool:
    return isinstance(term, SampleMargin) and term.form == "max"


def _has_cusp(term: Term) -> bool:
    """Whether the target's cosine enters as cos(theta + m), which has a cone at theta = 0."""
    margin = {ArcFace: "margin", CombinedMargin: "m2"}.get(type(term))
    return margin is not None and getattr(term, margin) != 0


def _never_negative(term: Term) -> bool:
    if isinstance(term, GMSoftmax):
        return term.alpha1 == term.alpha2 and term.beta1 == term.beta2
    if isinstance(term, HypersphericalEnergy):
        return term.power > 0
    return not isinstance(term, LMSoftmax | SampleMargin)


def _starts(problem: _Problem, width: int, d: int, seed: int, prototypes: Prototypes | None) -> list[Tensor]:
    """Random prototypes, or the fixed ones, with features equal to them."""
    if prototypes is not None:
        fixed = _checked_prototypes(prototypes, problem.k, d, to_unit=problem.decay is None)
        return [problem.with_features(fixed)]
    generator = torch.Generator().manual_seed(seed)
    many = 2 if problem.k <= d + 1 else 8
    drawn = torch.randn(many, problem.k, width, dtype=torch.float64, generator=generator)
    return [problem.with_features(normalize(start)) for start in drawn]


def _descend(stages: list[_Stage], starts: list[Tensor], problem: _Problem) -> _End:
    """Compare the `starts` in the first stage, then run all stages from the best."""
    points = starts[0]
    if len(starts) > 1:
        ends = (_minimize(stages[0], start, problem, _ROUGH) for start in starts)
        points = min(ends, key=lambda end: end.value).points
    for stage in stages[:-1]:
        points = _minimize(stage, points, problem, _ROUGH).points
    return _minimize(stages[-1], points, problem, 0.0)


def _minimize(stage: _Stage, start: Tensor, problem: _Problem, tolerance: float) -> _End:
    """L-BFGS until the value falls by no more than `tolerance`, with coordinates renewed on the way."""
    end, steps = _leg(stage, start, problem, tolerance)
    for _ in range(_ITERATIONS // _LEG):
        if steps < _LEG:
            break
        end, steps = _leg(stage, end.points, problem, tolerance)
    return end


def _leg(stage: _Stage, start: Tensor, problem: _Problem, tolerance: float) -> tuple[_End, int]:
    """L-BFGS on the stage's objective, or on its logarithm if it is always positive; number of iterations.

    At most `_LEG` iterations where the coordinates depend on the start.
    """
    from scipy.optimize import minimize

    terms = stage.objective.weighted_terms
    logarithm = problem.decay is None and all(c > 0 and _never_negative(term) for c, term in terms)

    objective = problem.value(stage.objective, stage.lift)
    level = max(objective(start).item(), torch.finfo(start.dtype).tiny) if logarithm else 1.0
    coordinates = _Coordinates.of(stage, problem, start, level)

    def landscape(flat: Any) -> tuple[float, Any]:
        moved = torch.from_numpy(flat).view(start.shape).requires_grad_()
        value = objective(coordinates.points(moved))
        value = value.log() if logarithm else value
        (gradient,) = torch.autograd.grad(value, moved)
        if problem.fixed:
            gradient[: problem.k] = 0
        return value.item(), gradient.flatten().numpy()

    iterations = _ITERATIONS if coordinates.moves is None else _LEG
    options = {
        "maxcor": 10,
        "maxiter": iterations,
        "maxfun": 6000,
        "maxls": _TRIALS,
        "ftol": tolerance,
        "gtol": _FLAT,
    }
    moved = coordinates.of_points(start).flatten().numpy()
    bounds = _bounds(start, problem.k) if problem.nonnegative else None
    result: Any = minimize(landscape, moved, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    points = problem.finished(coordinates.points(torch.from_numpy(result.x).view(start.shape)))
    slope = torch.from_numpy(result.jac)
    if problem.nonnegative:
        # At a coordinate of 0, ignore a gradient that would push it below the bound.
        held = (torch.from_numpy(result.x) == 0) & (slope > 0)
        held[: start[: problem.k].numel()] = False
        slope = torch.where(held, 0.0, slope)
    steps = 0 if coordinates.moves is None else result.nit
    return _End(points, result.fun, float(slope.norm())), steps


class _Coordinates(NamedTuple):
    """Linear coordinates in which an objective is better conditioned than in those of the points.

    - A large R_w is stiff along the moves of the prototypes that shift their centroid (`_CentroidMoves`);
      these are scaled by `centroid`.
    - The slope of a feature is proportional to the share of its class, so features are scaled by the square
      root of that, `feature_scale`.
    - ArcFace is steep where features leave their prototypes: with `offset`, features are expressed as the
      difference from them, in units of `offset`.
    """

    k: int
    moves: "_CentroidMoves | None"
    centroid: float
    feature_scale: Float[Tensor, "n 1"]
    offset: float | None

    @staticmethod
    def of(stage: _Stage, problem: _Problem, start: Tensor, level: float) -> "_Coordinates":
        """For descent from `start` of the objective in units of `level`."""
        stiffness = (
            sum(abs(c) for c, term in stage.objective.weighted_terms if isinstance(term, ZeroCentroid))
            / level
        )
        stiff = stiffness > 0 and not problem.fixed
        shares = problem.counts * problem.k / problem.counts.sum()
        split = stage.lift > 0 and not problem.nonnegative
        return _Coordinates(
            k=problem.k,
            moves=_CentroidMoves.at(start[: problem.k]) if stiff else None,
            centroid=1 / math.sqrt(1 + stiffness),
            feature_scale=shares.sqrt().repeat_interleave(problem.per_class)[:, None],
            offset=math.sqrt(10 * stage.lift) if split else None,
        )

    def points(self, moved: Tensor) -> Tensor:
        """The points with the coordinates `moved`."""
        prototypes, features = moved[: self.k], moved[self.k :] / self.feature_scale
        if self.moves is not None:
            prototypes = prototypes + (self.centroid - 1) * self.moves.part(prototypes)
        if self.offset is not None:
            features = self._own(prototypes, features) + self.offset * features
        return torch.cat([prototypes, features])

    def of_points(self, points: Tensor) -> Tensor:
        """The inverse of `points`."""
        prototypes, features = points[: self.k], points[self.k :]
        if self.offset is not None:
            features = (features - self._own(prototypes, features)) / self.offset
        if self.moves is not None:
            prototypes = prototypes + (1 / self.centroid - 1) * self.moves.part(prototypes)
        return torch.cat([prototypes, features * self.feature_scale])

    def _own(self, prototypes: Tensor, features: Tensor) -> Tensor:
        """The prototype of each feature."""
        return prototypes.repeat_interleave(len(features) // self.k, 0)


class _CentroidMoves(NamedTuple):
    r"""The moves of prototypes that shift the centroid of their directions.

    To first order the sum of the unit prototypes :math:`u_j = w_j / \|w_j\|` changes by
    :math:`\sum_j P_j \delta_j / \|w_j\|` with :math:`P_j = I - u_j u_j^T`. The moves orthogonal to those that
    leave it where it is are :math:`\delta_j = P_j v / \|w_j\|`, one for each v.
    """

    units: Float[Tensor, "k width"]
    norms: Float[Tensor, "k 1"]
    inverse: Float[Tensor, "width width"]

    @staticmethod
    def at(prototypes: Float[Tensor, "k width"]) -> "_CentroidMoves":
        """Those at the given prototypes."""
        norms = safe_norm(prototypes)
        units = prototypes / norms
        identity = torch.eye(units.shape[1], dtype=units.dtype)
        gram = (1 / norms.square()).sum() * identity - (units / norms).T @ (units / norms)
        return _CentroidMoves(units, norms, torch.linalg.pinv(gram, hermitian=True))

    def part(self, moves: Float[Tensor, "k width"]) -> Float[Tensor, "k width"]:
        """Orthogonal projection of `moves` onto those that shift the centroid."""
        shift = (tangent(self.units, moves) / self.norms).sum(0) @ self.inverse
        return tangent(self.units, shift.expand_as(moves)) / self.norms


def _bounds(start: Tensor, k: int) -> Sequence[tuple[float | None, None]]:
    prototypes = start[:k].numel()
    return [(None, None)] * prototypes + [(0.0, None)] * (start.numel() - prototypes)
