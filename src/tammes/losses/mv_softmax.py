"""MV-Softmax: misclassified wrong classes count more (Wang et al. 2020)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

import torch
from torch import Tensor

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._engine.rival_logits import RivalMap, above
from tammes.losses._parameters import PerClassValue, per_class_margin, positive_scale, set_field
from tammes.losses.arcface import additive_angle, arcface
from tammes.losses.cosface import cosface
from tammes.losses.elasticface import MarginForm
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores

Emphasis = Literal["adaptive", "fixed"]


@dataclass(frozen=True)
class _MisclassifiedMap(RivalMap):
    r""":math:`t c + t - 1` ("adaptive") or :math:`c + t` ("fixed") where c exceeds the threshold."""

    thresholded: ClassVar[bool] = True

    t: float
    emphasis: Emphasis

    def value(self, similarity: Tensor, threshold: Any, parameter: Any) -> Tensor:
        raised = self.t * similarity + (self.t - 1) if self.emphasis == "adaptive" else similarity + self.t
        return torch.where(similarity > threshold, raised, similarity)

    def value_and_slope(self, similarity: Tensor, threshold: Any, parameter: Any) -> tuple[Tensor, Tensor]:
        hard = above(similarity, threshold)
        if self.emphasis == "fixed":
            return torch.add(similarity, hard, alpha=self.t), torch.ones_like(similarity)
        value = torch.addcmul(similarity, hard, similarity + 1, value=self.t - 1)
        return value, hard.mul_(self.t - 1).add_(1)


@dataclass(frozen=True, kw_only=True)
class MVSoftmax(SampleTerm):
    r"""ArcFace or CosFace that emphasizes wrong classes with a larger cosine than the target with its margin.

    .. math::
        \ell_i = \operatorname{softplus}\Bigl(\log \sum_{j \ne y_i} e^{s h(c_{ij})} - s f_i\Bigr)

    f_i is the target cosine with its margin. Where :math:`c_{ij} > f_i`, h(c) is :math:`t c + t - 1` for
    `emphasis="adaptive"` and :math:`c + t` for "fixed"; elsewhere h(c) = c. `margin` is one number or one per
    class, in radians for `form="arc"`. Past pi the target continues as `arcface` does with
    `beyond_pi="linear"`. FaceX-Zoo applies its margins to targets above 0 ("arc") or m ("cos") only.

    Reference: Wang et al., "Mis-classified vector guided softmax loss for face recognition", 2020.
    """

    text_name: ClassVar[str] = "MVSoftmax"

    scale: Scale = 32.0
    margin: PerClassValue = 0.35
    t: float = 1.12
    form: MarginForm = "cos"
    emphasis: Emphasis = "adaptive"

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            scale: Scale = 32.0,
            margin: PerClassValue = 0.35,
            t: float = 1.12,
            form: MarginForm = "cos",
            emphasis: Emphasis = "adaptive",
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            s: Scale = 32.0,
            m: PerClassValue = 0.35,
            t: float = 1.12,
            form: MarginForm = "cos",
            emphasis: Emphasis = "adaptive",
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("MVSoftmax's scale", self.scale))
        checks.one_of("MVSoftmax's form", self.form, ("arc", "cos"))
        checks.one_of("MVSoftmax's emphasis", self.emphasis, ("adaptive", "fixed"))
        largest = math.pi / 2 if self.form == "arc" else 2.0
        set_field(self, "margin", per_class_margin("MVSoftmax's margin", self.margin, 0.0, largest))
        low = 1.0 if self.emphasis == "adaptive" else 0.0
        set_field(self, "t", checks.within(f"MVSoftmax's t for {self.emphasis!r}", self.t, low, 10.0))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, rival_map=_MisclassifiedMap(self.t, self.emphasis))

    def threshold(self, target: PerSample, **own: PerSample) -> PerSample:
        margin = self.value("margin", own)
        return target - margin if self.form == "cos" else additive_angle(target, margin)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        margin = self.value("margin", own)
        return cosface(scores, margin=margin) if self.form == "cos" else arcface(scores, margin=margin)
