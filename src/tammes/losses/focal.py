"""Focal loss: cross-entropy that down-weights well-classified samples (Lin et al. 2017)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

import torch

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import check_smoothing, scale_of_logits, set_field
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores, softmax_loss


def focal(scores: Scores, *, gamma: float, label_smoothing: float = 0.0) -> PerSample:
    r"""Softmax loss times the probability of the wrong classes to the power gamma.

    .. math::
        \ell_i = (1 - p_i)^\gamma \, (-\log p_i), \qquad p_i = \operatorname{softmax}_{y_i}

    Label smoothing applies to the second factor only; p stays the softmax of the true class.

    Reference: Lin, Goyal, Girshick, He, Dollar, "Focal loss for dense object detection", 2017.
    """
    logit = scores.scale * scores.target
    cross_entropy = softmax_loss(scores, logit)
    wrong = -torch.expm1(-cross_entropy)
    # Below the smallest normal number the derivative of a fractional power overflows.
    wrong = wrong.clamp_min(torch.finfo(wrong.dtype).tiny)
    if label_smoothing:
        cross_entropy = softmax_loss(scores, logit, label_smoothing)
    return wrong**gamma * cross_entropy


@dataclass(frozen=True, kw_only=True)
class Focal(SampleTerm):
    """Focal loss: cross-entropy times the power `gamma` of the probability of the wrong classes.

    Uses raw inner products, or cosines times `scale` with `normalize=True`. Formula and reference:
    `tammes.losses.functional.focal`.
    """

    text_name: ClassVar[str] = "Focal"

    gamma: float = 1.0
    normalize: bool = False
    scale: Scale = 1.0
    label_smoothing: float = 0.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            gamma: float = 1.0,
            normalize: bool = False,
            scale: Scale = 1.0,
            label_smoothing: float = 0.0,
        ) -> None: ...
        @overload
        def __init__(
            self, *, gamma: float = 1.0, normalize: bool = False, s: Scale = 1.0, label_smoothing: float = 0.0
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "gamma", checks.within("Focal's gamma", self.gamma, 0.0, 100.0))
        set_field(self, "scale", scale_of_logits("Focal", self.normalize, self.scale))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        space = "cosine" if self.normalize else "raw"
        return Need(space, self.scale, smoothing=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return focal(scores, gamma=self.gamma, label_smoothing=self.label_smoothing)
