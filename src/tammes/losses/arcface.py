"""ArcFace: a margin added to the target angle (Deng et al. 2019)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

import torch
from torch import Tensor

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.geometry.sphere import sine
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import (
    PerClassValue,
    check_smoothing,
    per_class_margin,
    positive_scale,
    set_field,
)
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores, softmax_loss

BeyondPi = Literal["linear", "clip", "plain"]
Gradient = Literal["exact", "straight_through"]


def additive_angle(
    cosine: PerSample, margin: float | PerSample, *, beyond_pi: BeyondPi = "linear", easy: bool = False
) -> PerSample:
    r""":math:`\cos(\theta + m)` from :math:`\cos \theta`, with a choice of continuation past :math:`\pi`.

    Past pi the cosine increases again, so plain ArcFace pulls a distant sample towards the antipode of its
    prototype (erratum 10). "linear" continues as t - m sin m, "clip" stays at -1, "plain" applies no fix.
    `easy` applies the margin only to samples within 90 degrees of their prototype.

    Uses the angle-addition formula instead of an arc cosine, so gradients are finite at c = 1 and -1.
    """
    turned = cosine * _cosine_of(margin) - sine(cosine) * _sine_of(margin)
    if easy:
        return torch.where(cosine > 0, turned, cosine)
    if beyond_pi == "plain":
        return turned
    beyond = cosine < -_cosine_of(margin)
    if beyond_pi == "clip":
        return torch.where(beyond, -1.0, turned)
    return torch.where(beyond, cosine - margin * _sine_of(margin), turned)


def arcface(
    scores: Scores,
    *,
    margin: float | PerSample,
    beyond_pi: BeyondPi = "linear",
    gradient: Gradient = "exact",
    easy_margin: bool = False,
    label_smoothing: float = 0.0,
) -> PerSample:
    r"""Softmax loss with a margin, in radians, added to the target angle.

    .. math::
        \ell_i = \operatorname{softplus}(\mathrm{rest}_i - s \cos(\theta_{i y_i} + m))

    `gradient="straight_through"` adds the margin under no_grad, as insightface does: the value is
    ArcFace's, the gradient that of a plain softmax at the shifted cosine.

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
    """Softmax loss over cosines times `scale` (s), with `margin` (m) added to the angle of the true class.

    The margin is in radians, one number or one per class. `beyond_pi` and `easy_margin`: see
    `tammes.losses.functional.additive_angle`. Formula and reference: `tammes.losses.functional.arcface`.

    >>> ArcFace(s=64, m=0.5) == ArcFace(scale=64, margin=0.5)
    True
    """

    text_name: ClassVar[str] = "ArcFace"

    scale: Scale
    margin: PerClassValue
    beyond_pi: BeyondPi = "linear"
    gradient: Gradient = "exact"
    easy_margin: bool = False
    label_smoothing: float = 0.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            scale: Scale,
            margin: PerClassValue,
            beyond_pi: BeyondPi = "linear",
            gradient: Gradient = "exact",
            easy_margin: bool = False,
            label_smoothing: float = 0.0,
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            s: Scale,
            m: PerClassValue,
            beyond_pi: BeyondPi = "linear",
            gradient: Gradient = "exact",
            easy_margin: bool = False,
            label_smoothing: float = 0.0,
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("ArcFace's scale", self.scale))
        hint = "The margin is in radians: math.radians(28.6) is 0.5."
        margin = per_class_margin("ArcFace's margin", self.margin, 0.0, math.pi / 2, hint)
        set_field(self, "margin", margin)
        checks.one_of("beyond_pi", self.beyond_pi, ("linear", "clip", "plain"))
        checks.one_of("gradient", self.gradient, ("exact", "straight_through"))
        checks.boolean("easy_margin", self.easy_margin)
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, smoothing=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return arcface(
            scores,
            margin=self.value("margin", own),
            beyond_pi=self.beyond_pi,
            gradient=self.gradient,
            easy_margin=self.easy_margin,
            label_smoothing=self.label_smoothing,
        )


def _cosine_of(value: float | Tensor) -> float | Tensor:
    """Cosine of a number or a tensor."""
    return torch.cos(value) if isinstance(value, Tensor) else math.cos(value)


def _sine_of(value: float | Tensor) -> float | Tensor:
    """Sine of a number or a tensor."""
    return torch.sin(value) if isinstance(value, Tensor) else math.sin(value)
