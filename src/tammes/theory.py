"""The paper's bounds with their signs put right, losses at the simplex, and optima with free features."""

import math
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tammes import checks
from tammes.geometry.energy import riesz_energy
from tammes.geometry.margins import class_margin
from tammes.geometry.simplex import simplex
from tammes.geometry.sphere import normalize
from tammes.losses.arcface import ArcFace
from tammes.losses.combined import CombinedMargin
from tammes.losses.evaluate import Weighting, check_per_class, class_value_tensors, evaluate
from tammes.losses.gm_softmax import GMSoftmax
from tammes.losses.lm_softmax import LMSoftmax
from tammes.losses.objective import Objective, PerClassValue, Term, combine, plan_of
from tammes.losses.regularisers import HypersphericalEnergy, SampleMargin, ZeroCentroid
from tammes.losses.scores import Space
from tammes.losses.statistics import Plan, Rivals, Statistics, dense
from tammes.threads import one_thread
from tammes.types import PerClass, Prototypes, Scalar

Counts = Sequence[int] | Sequence[float]
"""How many samples each class has."""


def gm_softmax_bound(
    k: int,
    *,
    scale: float,
    alpha1: PerClassValue = 1.0,
    alpha2: PerClassValue = 1.0,
    beta1: PerClassValue = 0.0,
    beta2: PerClassValue = 0.0,
    counts: Counts | None = None,
) -> float:
    r"""Least mean GM-Softmax loss of k <= d + 1 classes: Theorems 3.2 and 3.5, with the right sign.

    .. math::
        \sum_y p_y \log\bigl[ e^{s (\alpha_2 - \alpha_1 + \beta_2 - \beta_1)}
            + (k - 1) e^{-s (1/(k-1) + \alpha_1 + \beta_1)} \bigr]

    The paper prints the first exponent with the opposite sign (erratum 3). With one number each and no
    `counts` this is Theorem 3.2: it asks for balanced classes, :math:`\alpha_2 \le \alpha_1` and
    :math:`\alpha_1` at least `alpha1_threshold`. With numbers per class, or shares :math:`p_y` of the
    samples from `counts`, it is Theorem 3.5: prototypes whose centroid is zero, :math:`\alpha_2 \le
    \alpha_1` and only :math:`\alpha_1 \ge -1/(k-1)`. The regular simplex with features on their
    prototypes attains both.

    >>> round(gm_softmax_bound(3, scale=2.0), 4)
    0.0949
    """
    checks.at_least("k", k, 2)
    scale = checks.positive("scale", scale)
    a1, a2, b1, b2 = (_per_class(value, k) for value in (alpha1, alpha2, beta1, beta2))
    own = scale * (a2 - a1 + b2 - b1)
    others = math.log(k - 1) - scale * (1 / (k - 1) + a1 + b1)
    shares = _per_class(1.0, k) if counts is None else _counts(counts, k)
    return (shares @ torch.logaddexp(own, others) / shares.sum()).item()


def _per_class(value: PerClassValue, k: int) -> Tensor:
    values = torch.as_tensor(value, dtype=torch.float64)
    if values.shape not in ((), (k,)):
        raise ValueError(f"A parameter must be one number or {k}, one per class, got {len(values)}.")
    return values.expand(k)


def _counts(counts: Counts, k: int) -> Tensor:
    return check_per_class("counts", counts, k).to(torch.float64)


def normface_bound(k: int, *, scale: float) -> float:
    r"""Least mean NormFace loss of k <= d + 1 balanced classes, :math:`\log(1 + (k-1) e^{-s k/(k-1)})`.

    SphereFace's too (Proposition 3.3), and that of CE while :math:`|w_j| |z_i| \le s`: as norms grow it
    falls to 0, the infimum of Theorem 3.1 that nothing attains.

    >>> round(normface_bound(10, scale=5.0), 4)
    0.0342
    """
    return gm_softmax_bound(k, scale=scale)


def cosface_bound(k: int, *, scale: float, margin: float) -> float:
    """Least mean CosFace loss of k <= d + 1 balanced classes (Proposition 3.3)."""
    return gm_softmax_bound(k, scale=scale, beta1=-margin, beta2=-margin)


def arcface_bound(k: int, *, scale: float, margin: float) -> float:
    r"""Least mean ArcFace loss of k <= d + 1 balanced classes (Proposition 3.3).

    The margin costs :math:`1 - \cos m` at the simplex, as much as CosFace's of that size. Holds for every m
    in [0, pi/2] where the angle is continued past pi ("linear", "clip"); for "plain" ArcFace up to
    `largest_arcface_margin`.
    """
    return cosface_bound(k, scale=scale, margin=1 - math.cos(margin))


def lm_softmax_bound(k: int, *, scale: float) -> float:
    r"""Least mean LM-Softmax loss of k <= d + 1 balanced classes, :math:`\log(k-1) / s - k / (k-1)`.

    The limit of `gm_softmax_bound` / s as beta2 tends to -inf. `reduction="lse"` over n samples adds
    log(n) / s.

    >>> round(lm_softmax_bound(3, scale=10.0), 4)
    -1.4307
    """
    checks.at_least("k", k, 2)
    return math.log(k - 1) / checks.positive("scale", scale) - k / (k - 1)


def sample_margin_bound(k: int) -> float:
    """Least mean R_sm of k <= d + 1 balanced classes, -k / (k - 1) (Theorem 3.4); in either form."""
    return -checks.at_least("k", k, 2) / (k - 1)


def alpha1_threshold(k: int) -> float:
    r"""The least alpha1 for which Theorem 3.2 holds when alpha2 = alpha1: :math:`(k-2) / (2k-2)`.

    The paper asks for 1/2. Below the threshold prototypes that all coincide, with every feature at the
    antipode, have a smaller loss than the simplex; at it they tie (erratum 4). With alpha2 < alpha1 it is
    enough and not needed.
    """
    checks.at_least("k", k, 2)
    return (k - 2) / (2 * k - 2)


def largest_arcface_margin(k: int) -> float:
    """The largest margin, in radians, with which plain ArcFace is least at the simplex.

    Its cosine is `alpha1_threshold`: from 90 degrees for k = 2 down to 60 for many classes.
    """
    return math.acos(alpha1_threshold(k))


def value_at_simplex(objective: Objective, k: int, *, counts: Counts | None = None) -> float:
    """The value of `objective` at the regular simplex of k unit prototypes, every feature on its own.

    By the losses' own functions, from the cosines 1 and -1 / (k - 1), so any k is cheap (MHE builds the
    simplex). `counts` weigh the classes, one sample each by default, and are LDAM's class counts.

    >>> from tammes.losses import NormFace, ZeroCentroid
    >>> round(value_at_simplex(NormFace(scale=5.0) + 100.0 * ZeroCentroid(), 10), 4)
    0.0342
    """
    checks.at_least("k", k, 2)
    _check_reduced(objective)
    weights = torch.ones(k, dtype=torch.float64) if counts is None else _counts(counts, k)
    return _evaluate(objective, _simplex_statistics(k, plan_of(objective)), weights).item()


def _evaluate(objective: Objective, statistics: Statistics, weights: PerClass) -> Scalar:
    """The value for one sample of each class, weighted; the weights are LDAM's counts too."""
    ones = torch.ones_like(weights)
    weighting = Weighting(class_weight=None, sample_weight=weights, kept=ones > 0)
    class_values = class_value_tensors(objective, len(weights), weights, weights)
    value, _ = evaluate(objective, statistics, [ones], weighting, class_values)
    return value


def _simplex_statistics(k: int, plan: Plan) -> Statistics:
    """What a head would compute at the simplex; its centroid is zero, so one dimension stands for all."""
    ones = torch.ones(k, 1, dtype=torch.float64)
    rest: dict[tuple[Space, float], Tensor] = {
        (space, s): (math.log(k - 1) - s / (k - 1)) * ones[:, 0] for space, s in plan.rests
    }
    rival = Rivals(-ones[:, 0] / (k - 1), (torch.arange(k) == 0).long())
    return Statistics(
        targets=torch.arange(k)[:, None],
        num_classes=k,
        target=dict.fromkeys(plan.spaces, ones),
        rest=rest,
        rivals=dict.fromkeys(plan.spaces, rival),
        sums=dict.fromkeys(plan.sums, torch.zeros_like(ones[0])),
        rows=dict.fromkeys(plan.spaces, torch.zeros_like(ones)),
        row_norms=ones[:, 0],
        target_norms=ones,
        riesz=lambda power: riesz_energy(simplex(k, k - 1), power),
    )


def _check_reduced(objective: Objective) -> None:
    for _, term in objective.terms:
        if getattr(term, "reduction", "mean") == "none":
            raise ValueError(f'{term} has no single value: reduction="none". Use "mean" or "lse".')


class FreeFeatures(NamedTuple):
    """Where an objective tends to when nothing but itself holds the features."""

    points: Prototypes  # unit prototypes
    features: Prototypes  # one unit feature for each class
    class_margin: float  # radians
    loss: float
    gradient: (
        float  # norm of what was descended at the end: the loss, or its logarithm, smoothed where kinked
    )
    seconds: float


SHARPNESS = (16.0, 64.0, 256.0, 1024.0, 4096.0)
"""How sharp the kinks of an objective are as it is descended, from one stage to the next."""


def free_features(
    objective: Objective, counts: Counts, d: int, *, seed: int = 0, start: FreeFeatures | None = None
) -> FreeFeatures:
    r"""Prototypes and one feature per class that minimise `objective`, classes weighted by `counts`.

    What a network that can place its features anywhere would come to: all samples of a class share one
    best place, so one feature for each is enough (erratum 17: for NormFace this gives the class margins
    of the paper's Table 2 within 0.1 degrees). LDAM takes `counts` as class counts.

    L-BFGS in float64 from several seeded starts, the best followed until its value stops falling. Losses
    that cannot be negative are descended in their logarithm, since for a large scale they are flat: a
    gradient of 1e-25 still points somewhere. Kinks lie where optima like to be: R_sm's where two rivals
    tie, ArcFace's where a feature is on its prototype. They are smoothed by a growing sharpness t: R_sm
    is replaced by LM-Softmax of scale t, at most log(k-1) / t above it, and features are kept an angle
    1 / t from their prototypes. That leaves some hundredths of a degree in the class margin.

    k > d + 1 has local optima, as the Tammes problem has; the best of eight starts is returned. With
    `start`, an earlier result for the same k and d, descent goes on from there instead.
    Every term must read cosines: raw norms have no optimum but infinity (Theorem 3.1) or zero
    (erratum 11). A warning says when the gradient has not vanished, as with a stiff sum such as
    CosFace(s=64, m=0.35) + 100*R_w, whose terms are 1e-20 and 1.

    >>> from tammes.losses import NormFace
    >>> found = free_features(NormFace(scale=5.0), counts=[5000] * 5 + [500] * 5, d=64)
    >>> round(math.degrees(found.class_margin), 2)
    77.81
    """
    k = checks.at_least("The number of classes", len(counts), 2)
    checks.at_least("d", d, 2)
    _check_reduced(objective)
    _check_cosines(objective)
    weights = _counts(counts, k)
    began = time.perf_counter()
    # Features need the span of the prototypes and one direction out of it: no loss sees more.
    width = min(d, k + 1)
    starts = _starts(k, width, d, seed) if start is None else [torch.cat([start.points, start.features])]
    with one_thread():
        end = _descend(_stages(objective), [points[:, :width] for points in starts], weights)
    if not end.gradient <= _CONVERGED:
        warnings.warn(f"{objective} has not converged: its gradient is {end.gradient:.1g}.", stacklevel=2)
    points = torch.nn.functional.pad(end.points, (0, d - width))
    return FreeFeatures(
        points=points[:k],
        features=points[k:],
        class_margin=class_margin(points[:k]).item(),
        loss=_value(objective, points, weights).item(),
        gradient=end.gradient,
        seconds=time.perf_counter() - began,
    )


def _check_cosines(objective: Objective) -> None:
    for _, term in objective.terms:
        if term.need.space != "cosine":
            raise ValueError(
                f"Free features need terms that read cosines, got {term}: it can grow or shrink norms "
                "without end. Use its normalised form (NormFace for CE, R_w with normalize=True)."
            )


class _Stage(NamedTuple):
    """What is descended: an objective, its features lifted off the prototypes' space by `lift`."""

    objective: Objective
    lift: float = 0.0


class _End(NamedTuple):
    points: Tensor  # 2k unit rows: prototypes, then features
    value: float
    gradient: float


_ROUGH = 1e-8
"""Relative fall of the value at which a start is judged, or a stage left."""

_CONVERGED = 1e-3
"""Largest gradient that counts as none: the slopes descended are of order one and, where sharpened, more."""


def _stages(objective: Objective) -> list[_Stage]:
    """`objective`, or where it has kinks its smooth stand-ins, ever sharper."""
    terms = [term for _, term in objective.terms]
    if not any(_ties_rivals(term) or _has_cusp(term) for term in terms):
        return [_Stage(objective)]
    lifted = any(map(_has_cusp, terms))
    return [
        _Stage(
            combine((c, LMSoftmax(scale=t) if _ties_rivals(term) else term) for c, term in objective.terms),
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


def _starts(k: int, width: int, d: int, seed: int) -> list[Tensor]:
    """Random prototypes with the features on them."""
    generator = torch.Generator().manual_seed(seed)
    many = 2 if k <= d + 1 else 8
    prototypes = torch.randn(many, k, width, dtype=torch.float64, generator=generator)
    return [normalize(start).repeat(2, 1) for start in prototypes]


def _descend(stages: list[_Stage], starts: list[Tensor], weights: Tensor) -> _End:
    """The best of `starts` after the first stage, followed through all of them."""
    end = min((_minimise(stages[0], start, weights, _ROUGH) for start in starts), key=lambda end: end.value)
    for stage in stages[1:]:
        end = _minimise(stage, end.points, weights, _ROUGH)
    return _minimise(stages[-1], end.points, weights, 0.0)


def _minimise(stage: _Stage, start: Tensor, weights: Tensor, tolerance: float) -> _End:
    """L-BFGS on the stage's objective, or on its logarithm where that always exists."""
    from scipy.optimize import minimize

    terms = stage.objective.terms
    logarithm = all(c > 0 and _never_negative(term) for c, term in terms)
    stiffness = sum(abs(c) for c, term in terms if isinstance(term, ZeroCentroid))
    shrink = 1 / math.sqrt(1 + stiffness)

    def landscape(flat: Any) -> tuple[float, Any]:
        moved = torch.from_numpy(flat).view(start.shape).requires_grad_()
        value = _value(stage.objective, _with_centroid(moved, shrink), weights, stage.lift)
        value = value.log() if logarithm else value
        (gradient,) = torch.autograd.grad(value, moved)
        return value.item(), gradient.flatten().numpy()

    options = {"maxcor": 30, "maxiter": 3000, "maxfun": 6000, "ftol": tolerance, "gtol": 1e-12}
    moved = _with_centroid(start, 1 / shrink).flatten().numpy()
    result: Any = minimize(landscape, moved, jac=True, method="L-BFGS-B", options=options)
    points = normalize(_with_centroid(torch.from_numpy(result.x).view(start.shape), shrink))
    return _End(points, result.fun, math.sqrt((result.jac**2).sum()))


def _with_centroid(points: Tensor, factor: float) -> Tensor:
    """The prototypes' centroid times `factor`: descent in coordinates where a heavy R_w is not stiff."""
    prototypes, features = points.chunk(2)
    return torch.cat([prototypes + (factor - 1) * prototypes.mean(0), features])


def _value(objective: Objective, points: Tensor, weights: Tensor, lift: float = 0.0) -> Tensor:
    k = len(weights)
    prototypes, features = points[:k], points[k:]
    if lift:
        prototypes = torch.nn.functional.pad(prototypes, (0, 1))
        features = torch.nn.functional.pad(normalize(features), (0, 1), value=lift)
    targets = torch.arange(k)[:, None]
    return _evaluate(objective, dense(features, prototypes, targets, plan_of(objective)), weights)
