"""Margins that grow from zero in the first epochs of a run (`--margin-warmup`)."""

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
