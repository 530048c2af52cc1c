"""Choose a scale for a number of classes, and explain the choice."""

import math
from typing import NamedTuple

from tammes._common import checks
from tammes.losses.arcface import ArcFace
from tammes.losses.combined import CombinedMargin
from tammes.losses.cosface import CosFace
from tammes.losses.learnable import Learnable
from tammes.losses.normface import NormFace
from tammes.losses.objective import Objective
from tammes.losses.sample_margin import SampleMargin
from tammes.losses.sphereface import SphereFace

Advised = NormFace | CosFace | ArcFace | SphereFace | CombinedMargin

VANISHED = 1e-6
"""Relative to its maximum, s, a softmax gradient this small has no effect in float32 training."""


PUBLISHED = (
    ArcFace(scale=64, margin=0.5),
    CosFace(scale=64, margin=0.35),
    CosFace(scale=64, margin=0.4),
    CombinedMargin(scale=64, m1=1.0, m2=0.3, m3=0.2),
)
MANY = 10_000
"""Settings published for face recognition, and the least number of people that they were made for."""

GUIDE = "docs/guides/choose-s-and-m.md"


class ScaleAdvice(NamedTuple):
    """A suggested scale, the smallest and largest useful ones, and the reason."""

    scale: float
    least: float
    largest: float
    reason: str


def suggest_scale(num_classes: int, *, margin: float = 0.0, confidence: float = 0.99) -> ScaleAdvice:
    r"""Suggest a scale for softmax losses over cosines with k classes (NormFace; CosFace with a `margin`).

    At the largest margins (the simplex) the target cosine exceeds the others by :math:`\gamma = k/(k-1)`,
    so the probability of the true class is at most :math:`1 / (1 + (k-1) e^{-s (\gamma - m)})`. At the
    smallest useful scale it can reach 1/2, at the suggested scale `confidence`. Above the largest useful
    scale the gradient has vanished at half the maximum margin, long before training reaches the optimum.

    >>> suggest_scale(10).scale
    6.11...
    >>> suggest_scale(93_431, margin=0.35).reason
    'k = 93431, m = 0.35: ...
    """
    num_classes = checks.at_least("num_classes", num_classes, 2)
    checks.within("confidence", confidence, 0.5, 1 - 1e-9)
    lead = num_classes / (num_classes - 1) - checks.within("margin", margin, 0.0, 0.9)
    least = _scale_reaching(0.5, lead, num_classes)
    scale = _scale_reaching(confidence, lead, num_classes)
    largest = max(_vanishing_scale(num_classes, margin), scale)
    reason = (
        f"k = {num_classes}, m = {margin:g}: below s = {least:.3g} the probability of the true class "
        f"cannot reach 0.5 even at the largest margins; at s = {scale:.3g} it can reach {confidence:g}; "
        f"above s = {largest:.3g} gradients vanish at half the largest margin."
    )
    return ScaleAdvice(scale, least, largest, reason)


def _scale_reaching(confidence: float, lead: float, num_classes: int) -> float:
    """The scale at which a cosine lead of `lead` gives softmax `confidence`; infinite if there is no lead."""
    logit = math.log(num_classes - 1) + math.log(confidence / (1 - confidence))
    return logit / lead if lead > 0 else math.inf


def _vanishing_scale(num_classes: int, margin: float) -> float:
    """The scale at which (k-1) exp(-s (gamma/2 - m)) falls to `VANISHED`; infinite if m >= gamma/2."""
    lead = num_classes / (num_classes - 1) / 2 - margin
    return math.inf if lead <= 0 else (math.log(num_classes - 1) - math.log(VANISHED)) / lead


def scale_warnings(objective: Objective, num_classes: int, gamma: float) -> list[str]:
    """One warning for each softmax loss whose scale is too small or too large for `num_classes`.

    `gamma` is the largest possible lead of the target cosine, 1 - cos of the largest class margin. LM-Softmax
    keeps its gradient at every scale and is skipped, as are losses with per-class margins or a learned scale.
    """
    advised = [term for _, term in objective.weighted_terms if isinstance(term, Advised)]
    terms = [term for term in advised if not isinstance(term.scale, Learnable)]
    kept = any(isinstance(term, SampleMargin) for _, term in objective.weighted_terms)  # it keeps a gradient
    lines = [_warning(term, num_classes, gamma, kept) for term in terms if not term.class_values(None)]
    return [line for line in lines if line]


def _warning(term: Advised, num_classes: int, gamma: float, kept: bool) -> str | None:
    if num_classes >= MANY and term in PUBLISHED:
        return None
    better = _scale_reaching(0.99, gamma, num_classes)
    least = _loss_at(gamma, term, num_classes)
    if least > math.log(2):
        return (
            f"The loss of {term} cannot fall below {least:.3g} with {num_classes} classes; "
            f"try s={better:.3g}: {GUIDE}"
        )
    if gradient_left(term, num_classes, gamma) < VANISHED and not (term.label_smoothing or kept):
        return (
            f"s={term.scale:g} is too large for {num_classes} classes; "
            f"try s={better:.0f} or add '+ 0.5*R_sm': {GUIDE}"
        )
    return None


def gradient_left(term: Advised, num_classes: int, gamma: float) -> float:
    """The gradient in the target's logit half-way to the largest margins, relative to its maximum.

    `gamma` is the largest possible lead of the target cosine; here it leads by half of that.
    """
    return -math.expm1(-_loss_at(gamma / 2, term, num_classes))


def _loss_at(lead: float, term: Advised, num_classes: int) -> float:
    """The loss, without label smoothing, where the target cosine is 1 and every other is 1 - lead.

    Computed in Python floats, so that it also works for heads built on the meta device.
    """
    scale = term.scale.value if isinstance(term.scale, Learnable) else term.scale
    gap = scale * (1 - lead - _moved(term)) + math.log(num_classes - 1)
    return math.log1p(math.exp(gap)) if gap < 0 else gap + math.log1p(math.exp(-gap))


def _moved(term: Advised) -> float:
    """The cosine that `term` makes of a target cosine of 1 (an angle of 0)."""
    match term:
        case CosFace(margin=float(margin)):
            return 1 - margin
        case ArcFace(margin=float(margin)):
            return math.cos(margin)
        case CombinedMargin(m2=float(m2), m3=float(m3)):
            return math.cos(m2) - m3
    return 1.0  # NormFace has no margin, SphereFace multiplies the angle
