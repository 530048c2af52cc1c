"""What a head reads from an objective: its logits, its statistics and the names of its terms."""

import math
from collections.abc import Mapping

from torch import Tensor

from tammes._common.types import Scalar
from tammes.losses._engine.plan import Plan
from tammes.losses._engine.rival_logits import AnyScale, RivalLogits
from tammes.losses.learnable import Learnable
from tammes.losses.objective import Objective, Term
from tammes.losses.scores import Space

ClassValues = Mapping[tuple[int, str], Tensor]
"""Per-class parameters as tensors of length k, by the place of their term and their name."""

ScaleValues = Mapping[int, Scalar]
"""The current values of learned scales, by the place of their term."""


def term_keys(objective: Objective) -> list[str]:
    """A name for each term that does not depend on its parameters: the class name, numbered if repeated.

    >>> from tammes import parse
    >>> term_keys(parse("CosFace(s=64, m=0.35) + R_w + R_w(normalize=False)"))
    ['CosFace', 'ZeroCentroid', 'ZeroCentroid_2']
    """
    names = [type(term).__name__ for _, term in objective.weighted_terms]
    places = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [name if place == 1 else f"{name}_{place}" for name, place in zip(names, places, strict=True)]


def first_loss(objective: Objective) -> Term:
    """The term that defines the head's logits: the first loss, or else the first term."""
    terms = [term for _, term in objective.weighted_terms]
    return next((term for term in terms if term.is_loss), terms[0])


def logit_space(objective: Objective) -> Space:
    """Space of the head's logits."""
    return first_loss(objective).need.space


def plan_of(
    objective: Objective,
    class_weight: Tensor | None = None,
    class_values: ClassValues | None = None,
    scales: ScaleValues | None = None,
) -> Plan:
    """The statistics that all terms of `objective` need; `class_weight` must have the working dtype."""
    needs = [term.need for _, term in objective.weighted_terms]
    plan = Plan.of(needs, logit_space(objective), class_weight)
    logits = {}
    for place, need in enumerate(needs):
        if need.scale is None or need.rest(place).place is None:
            continue
        own = {name: table for (other, name), table in (class_values or {}).items() if other == place}
        logits[need.rest(place)] = RivalLogits(
            (scales or {}).get(place, starting_scale(need.scale)),
            need.rival_map,
            own.get("factor") if need.class_logits else None,
            own.get("offset") if need.class_logits else None,
        )
    return plan._replace(logits=logits)


def starting_scale(scale: AnyScale) -> float:
    """The value that a scale has before training; that of an adaptive one is not known yet."""
    if isinstance(scale, Learnable):
        return scale.value
    return math.nan if isinstance(scale, str) else scale
