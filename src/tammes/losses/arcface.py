"""ArcFace: a margin added to the target angle (Deng et al. 2019)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from tammes import checks
from tammes.geometry.sphere import sine
from tammes.losses.objective import (
    PerClassValue,
    SampleTerm,
    check_smoothing,
    cosine_of,
    per_class_margin,
    set_field,
    sine_of,
)
from tammes.losses.scores import Scores, softmax_loss
from tammes.losses.statistics import Need
from tammes.types import PerSample

BeyondPi = Literal["linear", "clip", "plain"]
Gradient = Literal["exact", "straight_through"]


def additive_angle(
    cosine: PerSample, margin: float | PerSample, *, beyond_pi: BeyondPi = "linear", easy: bool = False
) -> PerSample:
    r""":math:`\cos(\theta + m)` of a cosine, and what stands in for it where :math:`\theta + m > \pi`.

    Past pi the cosine rises again, so that plain ArcFace pulls a far sample to the antipode of its
    prototype (erratum 10). "linear" goes on as t - m sin m, "clip" stays at -1, "plain" lets it turn.
    `easy` applies the margin only to samples within 90 degrees of their prototype.

    By the addition theorem, without an arc cosine: finite gradients at c = 1 and -1.
    """
    turned = cosine * cosine_of(margin) - sine(cosine) * sine_of(margin)
    if easy:
        return torch.where(cosine > 0, turned, cosine)
    if beyond_pi == "plain":
        return turned
    beyond = cosine < -cosine_of(margin)
    if beyond_pi == "clip":
        return torch.where(beyond, -1.0, turned)
    return torch.where(beyond, cosine - margin * sine_of(margin), turned)


def arcface(
    scores: Scores,
    *,
    margin: float | PerSample,
    beyond_pi: BeyondPi = "linear",
    gradient: Gradient = "exact",
    easy_margin: bool = False,
    label_smoothing: float = 0.0,
) -> PerSample:
    r"""Softmax loss with the target angle raised by a margin in radians.

    .. math::
        \ell_i = \operatorname{softplus}(\mathrm{rest}_i - s \cos(\theta_{i y_i} + m))

    `gradient="straight_through"` moves the cosine under no_grad, as insightface does: the value is
    ArcFace's, the gradient that of a softmax at the moved cosine.

    >>> from torch import tensor
    >>> arcface(Scores.of(tensor([[0.6, -0.5, -0.5]]), tensor([0]), scale=2.0), margin=0.0)
    tensor([0.2002])

    Reference: Deng, Guo, Xue, Zafeiriou, "ArcFace: additive angular margin loss", 2019.
    """
    moved = additive_angle(scores.target, margin, beyond_pi=beyond_pi, easy=easy_margin)
    if gradient == "straight_through":
        moved = scores.target + (moved - scores.target).detach()
    return softmax_loss(scores, scores.scale * moved, label_smoothing)


@dataclass(frozen=True, kw_only=True)
class ArcFace(SampleTerm):
    """`arcface` as a term; `margin` in radians, or a sequence with one number per class."""

    text_name: ClassVar[str] = "ArcFace"

    scale: float
    margin: PerClassValue
    beyond_pi: BeyondPi = "linear"
    gradient: Gradient = "exact"
    easy_margin: bool = False
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        set_field(self, "scale", checks.positive("ArcFace's scale", self.scale))
        hint = "It is in radians: math.radians(28.6) is 0.5."
        margin = per_class_margin("ArcFace's margin", self.margin, 0.0, math.pi / 2, hint)
        set_field(self, "margin", margin)
        checks.one_of("beyond_pi", self.beyond_pi, ("linear", "clip", "plain"))
        checks.one_of("gradient", self.gradient, ("exact", "straight_through"))
        checks.boolean("easy_margin", self.easy_margin)
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, mean=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return arcface(
            scores,
            margin=self.value("margin", own),
            beyond_pi=self.beyond_pi,
            gradient=self.gradient,
            easy_margin=self.easy_margin,
            label_smoothing=self.label_smoothing,
        )
