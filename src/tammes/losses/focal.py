"""Focal loss: cross-entropy that fades where a sample is already right (Lin et al. 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from tammes import checks
from tammes.losses.cross_entropy import check_raw_scale
from tammes.losses.objective import SampleTerm, check_smoothing, set_field
from tammes.losses.scores import Scores, softmax_loss
from tammes.losses.statistics import Need
from tammes.types import PerSample


def focal(scores: Scores, *, gamma: float, label_smoothing: float = 0.0) -> PerSample:
    r"""Softmax loss times the chance of being wrong to the power gamma.

    .. math::
        \ell_i = (1 - p_i)^\gamma \, (-\log p_i), \qquad p_i = \operatorname{softmax}_{y_i}

    With label smoothing p stays the softmax and only the second factor is smoothed.

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
    """`focal` as a term, of raw inner products unless `normalize=True`."""

    text_name: ClassVar[str] = "Focal"

    gamma: float = 1.0
    normalize: bool = False
    scale: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_raw_scale("Focal", self.normalize, self.scale)
        set_field(self, "gamma", checks.within("Focal's gamma", self.gamma, 0.0, 100.0))
        set_field(self, "scale", checks.positive("Focal's scale", self.scale))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        space = "cosine" if self.normalize else "raw"
        return Need(space, self.scale, mean=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return focal(scores, gamma=self.gamma, label_smoothing=self.label_smoothing)
