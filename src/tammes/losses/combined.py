"""ArcFace's combined margin: cos(m1 theta + m2) - m3 (paper, eq. 3.1)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tammes._common.types import PerSample
from tammes.geometry.sphere import arc
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
from tammes.losses.sphereface import monotone_cosine


def combined_margin(
    scores: Scores,
    *,
    m1: float | PerSample,
    m2: float | PerSample,
    m3: float | PerSample,
    label_smoothing: float = 0.0,
) -> PerSample:
    r"""Softmax loss with a multiplicative, an angular and a cosine margin on the target.

    .. math::
        \ell_i = \operatorname{softplus}(\mathrm{rest}_i - s (\psi(m_1 \theta_{i y_i} + m_2) - m_3))

    where psi is `monotone_cosine`, equal to the cosine up to pi. Past pi the formula as printed increases
    again and rewards the antipode (errata 9 and 10).

    >>> from torch import tensor
    >>> combined_margin(Scores.of(tensor([[0.6, -0.5, -0.5]]), tensor([0]), scale=2.0), m1=1, m2=0, m3=1)
    tensor([0.9698])
    """
    moved = monotone_cosine(m1 * arc(scores.target) + m2) - m3
    return softmax_loss(scores, scores.scale * moved, label_smoothing)


@dataclass(frozen=True, kw_only=True)
class CombinedMargin(SampleTerm):
    """Softmax loss over scaled cosines with the margins of SphereFace (m1), ArcFace (m2) and CosFace (m3).

    Each margin is one number or one per class. Formula: `tammes.losses.functional.combined_margin`.
    """

    text_name: ClassVar[str] = "CombinedMargin"

    scale: Scale
    m1: PerClassValue = 1.0
    m2: PerClassValue = 0.0
    m3: PerClassValue = 0.0
    label_smoothing: float = 0.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            scale: Scale,
            m1: PerClassValue = 1.0,
            m2: PerClassValue = 0.0,
            m3: PerClassValue = 0.0,
            label_smoothing: float = 0.0,
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            s: Scale,
            m1: PerClassValue = 1.0,
            m2: PerClassValue = 0.0,
            m3: PerClassValue = 0.0,
            label_smoothing: float = 0.0,
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("CombinedMargin's scale", self.scale))
        set_field(self, "m1", per_class_margin("CombinedMargin's m1", self.m1, 1.0, 100.0))
        set_field(self, "m2", per_class_margin("CombinedMargin's m2", self.m2, 0.0, math.pi / 2))
        set_field(self, "m3", per_class_margin("CombinedMargin's m3", self.m3, 0.0, 2.0))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, smoothing=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        margins = {name: self.value(name, own) for name in ("m1", "m2", "m3")}
        return combined_margin(scores, **margins, label_smoothing=self.label_smoothing)
