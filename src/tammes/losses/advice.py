"""Which scale suits how many classes, and the reasons."""

import dataclasses
import math
from typing import NamedTuple

import torch

from tammes import checks
from tammes.losses.arcface import ArcFace
from tammes.losses.combined import CombinedMargin
from tammes.losses.cosface import CosFace
from tammes.losses.normface import NormFace
from tammes.losses.objective import Objective
from tammes.losses.scores import Scores
from tammes.losses.sphereface import SphereFace

Advised = NormFace | CosFace | ArcFace | SphereFace | CombinedMargin

VANISHED = 1e-6
"""A softmax gradient this small (against its largest, s) moves nothing in float32 training."""


class ScaleAdvice(NamedTuple):
    """A scale, the least and largest that make sense, and why."""

    scale: float
    least: float
    largest: float
    reason: str


def suggest_scale(num_classes: int, *, margin: float = 0.0, confidence: float = 0.99) -> ScaleAdvice:
    r"""A scale for softmax losses over cosines with k classes (NormFace; CosFace with a `margin`).

    At the largest margins (the simplex) the target cosine leads the others by :math:`\gamma = k/(k-1)`,
    so the softmax of the true class is at most :math:`1 / (1 + (k-1) e^{-s (\gamma - m)})`. The least
    scale lets it reach 1/2, the suggested one `confidence`. The largest is where the gradient at half
    that lead has died: a larger one stops pulling long before the margins are largest.

    >>> suggest_scale(10).scale
    6.11...
    >>> suggest_scale(93_431, margin=0.35).reason
    'k = 93431, m = 0.35: ...
    """
    checks.at_least("num_classes", num_classes, 2)
    checks.within("confidence", confidence, 0.5, 1 - 1e-9)
    lead = num_classes / (num_classes - 1) - checks.within("margin", margin, 0.0, 0.9)
    least = _scale_reaching(0.5, lead, num_classes)
    scale = _scale_reaching(confidence, lead, num_classes)
    largest = max(_vanishing_scale(num_classes, margin), scale)
    reason = (
        f"k = {num_classes}, m = {margin:g}: below s = {least:.3g} the true class cannot reach one half "
        f"even at the largest margins; s = {scale:.3g} lets it reach {confidence:g}; above "
        f"s = {largest:.3g} gradients vanish at half of the largest margin."
    )
    return ScaleAdvice(scale, least, largest, reason)


def _scale_reaching(confidence: float, lead: float, num_classes: int) -> float:
    """Where a class that leads all others by `lead` has softmax `confidence`; infinite without a lead."""
    logit = math.log(num_classes - 1) + math.log(confidence / (1 - confidence))
    return logit / lead if lead > 0 else math.inf


def _vanishing_scale(num_classes: int, margin: float) -> float:
    """Where (k-1) exp(-s (gamma/2 - m)) falls to `VANISHED`; infinite when the margin outlasts gamma/2."""
    lead = num_classes / (num_classes - 1) / 2 - margin
    return math.inf if lead <= 0 else (math.log(num_classes - 1) - math.log(VANISHED)) / lead


def warnings_for(objective: Objective, num_classes: int, gamma: float) -> list[str]:
    """One line for every softmax loss whose scale is too small or too large for `num_classes`.

    `gamma` is the largest lead of the target cosine, 1 - cos of the largest class margin. LM-Softmax keeps
    its gradient at every scale, and margins that differ from class to class have no one answer.
    """
    terms = [term for _, term in objective.terms if isinstance(term, Advised)]
    lines = [_warning(term, num_classes, gamma) for term in terms if not term.class_values(None)]
    return [line for line in lines if line]


def _warning(term: Advised, num_classes: int, gamma: float) -> str | None:
    better = f"s = {_scale_reaching(0.99, gamma, num_classes):.3g} (see tammes.suggest_scale)"
    least = _loss_at(gamma, term, num_classes)
    if least > math.log(2):
        return (
            f"{term} cannot reach a small loss with {num_classes} classes: it is {least:.3g} at the "
            f"largest margins. Without a margin {better} would do."
        )
    gradient = -math.expm1(-_loss_at(gamma / 2, term, num_classes))  # of a softmax loss in its logit
    if gradient < VANISHED and not term.label_smoothing:
        return (
            f"{term} has {gradient:.0e} of its gradient left at half of the largest margin with "
            f"{num_classes} classes. Try {better}, or add 0.5 * SampleMargin()."
        )
    return None


def _loss_at(lead: float, term: Advised, num_classes: int) -> float:
    """A term without smoothing, where the target cosine is 1 and every other 1 - lead."""
    scale = term.scale
    target = torch.ones(1, dtype=torch.float64)
    other = torch.full((1,), 1 - lead, dtype=torch.float64)
    scores = Scores(
        target=target,
        rest=scale * other + math.log(num_classes - 1),
        hardest=other,
        mean=((num_classes - 1) * other + target) / num_classes,
        scale=scale,
        labels=torch.zeros(1, dtype=torch.long),
        num_classes=num_classes,
        norms=torch.ones_like(other),
    )
    return dataclasses.replace(term, label_smoothing=0.0).per_sample(scores).item()
