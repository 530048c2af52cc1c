"""CosFace, also known as AM-Softmax: a margin subtracted from the target cosine (Wang et al. 2018)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tammes._common.types import PerSample
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


def cosface(scores: Scores, *, margin: float | PerSample, label_smoothing: float = 0.0) -> PerSample:
    r"""Softmax loss with a margin subtracted from the target cosine.

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
    """Softmax loss over cosines times `scale` (s), with `margin` (m) subtracted from that of the true class.

    The margin is one number or one per class. Formula and reference: `tammes.losses.functional.cosface`.
    AMSoftmax is another name of this class.

    >>> CosFace(s=64, m=0.35) == CosFace(scale=64, margin=0.35)
    True
    """

    text_name: ClassVar[str] = "CosFace"

    scale: Scale
    margin: PerClassValue
    label_smoothing: float = 0.0

    if TYPE_CHECKING:

        @overload
        def __init__(self, *, scale: Scale, margin: PerClassValue, label_smoothing: float = 0.0) -> None: ...
        @overload
        def __init__(self, *, s: Scale, m: PerClassValue, label_smoothing: float = 0.0) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("CosFace's scale", self.scale))
        set_field(self, "margin", per_class_margin("CosFace's margin", self.margin, 0.0, 2.0))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, smoothing=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return cosface(scores, margin=self.value("margin", own), label_smoothing=self.label_smoothing)


AMSoftmax = CosFace
"""Alias of `CosFace`."""
