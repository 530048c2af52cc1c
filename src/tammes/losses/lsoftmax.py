"""L-Softmax: the first angular margin, on raw inner products (Liu et al. 2016)."""

from dataclasses import dataclass
from typing import ClassVar

from tammes.losses.objective import PerClassValue, SampleTerm, check_smoothing, per_class_margin, set_field
from tammes.losses.scores import Scores
from tammes.losses.sphereface import sphereface
from tammes.losses.statistics import Need
from tammes.types import PerSample


@dataclass(frozen=True, kw_only=True)
class LSoftmax(SampleTerm):
    """`sphereface` of raw inner products: neither features nor prototypes are normalised.

    Reference: Liu, Wen, Yu, Yang, "Large-margin softmax loss for convolutional neural networks", 2016.
    """

    text_name: ClassVar[str] = "LSoftmax"

    margin: PerClassValue = 4.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        set_field(self, "margin", per_class_margin("LSoftmax's margin", self.margin, 1.0, 100.0))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        return Need("raw", 1.0, mean=self.label_smoothing > 0, norms=True)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return sphereface(scores, margin=self.value("margin", own), label_smoothing=self.label_smoothing)
