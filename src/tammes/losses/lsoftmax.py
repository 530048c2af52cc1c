"""L-Softmax: the first angular margin, on raw inner products (Liu et al. 2016)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import PerClassValue, check_smoothing, per_class_margin, set_field
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores
from tammes.losses.sphereface import sphereface


@dataclass(frozen=True, kw_only=True)
class LSoftmax(SampleTerm):
    """Softmax loss over raw inner products, with the angle of the true class multiplied by `margin` (m).

    SphereFace without normalization. Formula: `tammes.losses.functional.sphereface`.

    Reference: Liu, Wen, Yu, Yang, "Large-margin softmax loss for convolutional neural networks", 2016.
    """

    text_name: ClassVar[str] = "LSoftmax"

    margin: PerClassValue = 4.0
    label_smoothing: float = 0.0

    if TYPE_CHECKING:

        @overload
        def __init__(self, *, margin: PerClassValue = 4.0, label_smoothing: float = 0.0) -> None: ...
        @overload
        def __init__(self, *, m: PerClassValue = 4.0, label_smoothing: float = 0.0) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "margin", per_class_margin("LSoftmax's margin", self.margin, 1.0, 100.0))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        return Need("raw", 1.0, smoothing=self.label_smoothing > 0, norms=True)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return sphereface(scores, margin=self.value("margin", own), label_smoothing=self.label_smoothing)
