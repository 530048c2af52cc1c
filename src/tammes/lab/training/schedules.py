"""Learning-rate and margin schedules, as functions of the progress of a run."""

import math
from dataclasses import replace
from typing import Any

from tammes.losses import (
    LDAM,
    AdaFace,
    ArcFace,
    CombinedMargin,
    CosFace,
    CurricularFace,
    ElasticFace,
    LSoftmax,
    MagFace,
    MVSoftmax,
    Objective,
    SphereFace,
    Term,
)
from tammes.losses.objective import combine

START = 0.01
"""Start of a warm-up, as a fraction of the learning rate."""
PEAK = 0.25
"""Peak of one-cycle, as a fraction of the run."""


def learning_rate(
    schedule: str, progress: float, *, warmup: float = 0.0, milestones: tuple[float, ...] = ()
) -> float:
    r"""Learning-rate factor at `progress`, the completed fraction of the run.

    - cosine: :math:`\tfrac12 (1 + \cos \pi p)`;
    - one-cycle: linear up to a quarter of the run, then linear down to 0;
    - step: divided by 10 at each of the `milestones`;
    - polynomial: :math:`(1 - p)^2`;
    - constant.

    The first `warmup` fraction of the run is a linear warm-up. Cosine and polynomial then span the rest of
    the run.

    >>> [round(learning_rate("cosine", p, warmup=0.5), 3) for p in (0.0, 0.25, 0.5, 0.75, 1.0)]
    [0.01, 0.505, 1.0, 0.5, 0.0]
    """
    if progress < warmup:
        return START + (1 - START) * progress / warmup
    past = (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0
    match schedule:
        case "cosine":
            return (1 + math.cos(math.pi * past)) / 2
        case "polynomial":
            return (1 - past) ** 2
        case "one-cycle":
            rise = START + (1 - START) * progress / PEAK
            return min(rise, (1 - progress) / (1 - PEAK))
        case "step":
            return 0.1 ** sum(progress >= milestone for milestone in milestones)
    return 1.0


MARGINS: dict[type[Term], dict[str, float]] = {
    CosFace: {"margin": 0.0},
    ArcFace: {"margin": 0.0},
    SphereFace: {"margin": 1.0},
    LSoftmax: {"margin": 1.0},
    CombinedMargin: {"m1": 1.0, "m2": 0.0, "m3": 0.0},
    LDAM: {"max_margin": 0.0, "C": 1e-9},
    AdaFace: {"margin": 0.0},
    MagFace: {"low_margin": 0.0, "high_margin": 0.0},
    ElasticFace: {"margin": 0.0},
    CurricularFace: {"margin": 0.0},
    MVSoftmax: {"margin": 0.0},
}
"""Fields that are margins, and their values for no margin."""


def with_margins(objective: Objective, share: float) -> Objective:
    """Interpolate every margin of `objective`: `share` of the way from no margin to its full value.

    >>> from tammes import parse
    >>> str(with_margins(parse("CosFace(s=64, m=0.4) + 0.5*R_sm"), 0.25))
    'CosFace(s=64, m=0.1) + 0.5*R_sm'
    """
    if share >= 1:
        return objective
    return combine(
        (coefficient, _with_margins(term, share)) for coefficient, term in objective.weighted_terms
    )


def _with_margins(term: Term, share: float) -> Term:
    fields = MARGINS.get(type(term), {})
    moved = {name: _between(none, getattr(term, name), share) for name, none in fields.items()}
    return replace(term, **moved)


def _between(none: float, value: Any, share: float) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(_between(none, one, share) for one in value)
    return none + share * (value - none)
