"""CosFace, also AM-Softmax: a margin taken off the target cosine (Wang et al. 2018)."""

from dataclasses import dataclass
from typing import ClassVar

from tammes import checks
from tammes.losses.objective import PerClassValue, SampleTerm, check_smoothing, per_class_margin, set_field
from tammes.losses.scores import Scores, softmax_loss
from tammes.losses.statistics import Need
from tammes.types import PerSample


def cosface(scores: Scores, *, margin: float | PerSample, label_smoothing: float = 0.0) -> PerSample:
    r"""Softmax loss with the target cosine lowered by a margin.

    .. math::
        \ell_i = \operatorname{softplus}(\mathrm{rest}_i - s (c_{i y_i} - m))

    >>> from torch import tensor
    >>> cosface(Scores.of(tensor([[1.0, -0.5, -0.5]]), tensor([0]), scale=2.0), margin=1.5)
    tensor([1.0986])

    References: Wang et al., "CosFace: large margin cosine loss for deep face recognition", 2018; Wang,
    Cheng, Liu, Liu, "Additive margin softmax for face verification", 2018.
    """
    return softmax_loss(scores, scores.scale * (scores.target - margin), label_smoothing)


@dataclass(frozen=True, kw_only=True)
class CosFace(SampleTerm):
    """`cosface` as a term; `margin` may be a sequence with one number per class."""

    text_name: ClassVar[str] = "CosFace"

    scale: float
    margin: PerClassValue
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        set_field(self, "scale", checks.positive("CosFace's scale", self.scale))
        set_field(self, "margin", per_class_margin("CosFace's margin", self.margin, 0.0, 2.0))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, mean=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return cosface(scores, margin=self.value("margin", own), label_smoothing=self.label_smoothing)


AMSoftmax = CosFace
"""Another name of the same loss."""
