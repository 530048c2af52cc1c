"""NormFace: softmax over scaled cosines (Wang et al. 2017)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import check_smoothing, positive_scale, set_field
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores, softmax_loss


def normface(scores: Scores, *, label_smoothing: float = 0.0) -> PerSample:
    r"""Softmax loss over scaled cosines of features and prototypes.

    .. math::
        \ell_i = -\log \frac{e^{s c_{i y_i}}}{\sum_j e^{s c_{ij}}}

    For k <= d + 1 its minimum, at the simplex, is :math:`\log(1 + (k - 1) e^{-s k / (k - 1)})`.

    >>> from torch import tensor
    >>> normface(Scores.of(tensor([[1.0, -0.5, -0.5]]), tensor([0]), scale=2.0))
    tensor([0.0949])

    Reference: Wang, Xiang, Cheng, Yuille, "NormFace: L2 hypersphere embedding for face verification", 2017.
    """
    return softmax_loss(scores, scores.scale * scores.target, label_smoothing)


@dataclass(frozen=True, kw_only=True)
class NormFace(SampleTerm):
    """Softmax loss over cosines times `scale` (s).

    Formula and reference: `tammes.losses.functional.normface`.

    >>> NormFace(s=10) == NormFace(scale=10)
    True
    """

    text_name: ClassVar[str] = "NormFace"

    scale: Scale
    label_smoothing: float = 0.0

    if TYPE_CHECKING:

        @overload
        def __init__(self, *, scale: Scale, label_smoothing: float = 0.0) -> None: ...
        @overload
        def __init__(self, *, s: Scale, label_smoothing: float = 0.0) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("NormFace's scale", self.scale))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, smoothing=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return normface(scores, label_smoothing=self.label_smoothing)
