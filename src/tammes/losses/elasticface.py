"""ElasticFace: ArcFace or CosFace with a random margin for every sample (Boutros et al. 2022)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import PerClassValue, per_class_margin, positive_scale, set_field
from tammes.losses.arcface import arcface
from tammes.losses.cosface import cosface
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores

MarginForm = Literal["arc", "cos"]


def elasticface(
    scores: Scores, *, margin: float | PerSample, std: float, form: MarginForm = "arc"
) -> PerSample:
    r"""`arcface` or `cosface` with a margin :math:`m_i \sim N(m, \sigma^2)` per sample and step.

    Draws are clipped to [0, pi / 2] for "arc" and [0, 2] for "cos", which the authors' code leaves out. In
    eval mode the margin is m.

    Reference: Boutros, Damer, Kirchbuchner, Kuijper, "ElasticFace: elastic margin loss for deep face
    recognition", 2022.
    """
    largest = math.pi / 2 if form == "arc" else 2.0
    drawn = (margin + std * scores.noise).clamp(0.0, largest)
    return arcface(scores, margin=drawn) if form == "arc" else cosface(scores, margin=drawn)


@dataclass(frozen=True, kw_only=True)
class ElasticFace(SampleTerm):
    """ArcFace (`form="arc"`) or CosFace ("cos") with a normally distributed margin for each sample.

    Its mean, `margin` (m), is one number or one per class, in radians for "arc"; `std` is its standard
    deviation. Formula and reference: `tammes.losses.functional.elasticface`.
    """

    text_name: ClassVar[str] = "ElasticFace"

    scale: Scale = 64.0
    margin: PerClassValue = 0.5
    std: float = 0.05
    form: MarginForm = "arc"

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            scale: Scale = 64.0,
            margin: PerClassValue = 0.5,
            std: float = 0.05,
            form: MarginForm = "arc",
        ) -> None: ...
        @overload
        def __init__(
            self, *, s: Scale = 64.0, m: PerClassValue = 0.5, std: float = 0.05, form: MarginForm = "arc"
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("ElasticFace's scale", self.scale))
        checks.one_of("ElasticFace's form", self.form, ("arc", "cos"))
        largest = math.pi / 2 if self.form == "arc" else 2.0
        set_field(self, "margin", per_class_margin("ElasticFace's margin", self.margin, 0.0, largest))
        set_field(self, "std", checks.within("ElasticFace's std", self.std, 0.0, 1.0))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, noise=True)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return elasticface(scores, margin=self.value("margin", own), std=self.std, form=self.form)
