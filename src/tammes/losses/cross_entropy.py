"""Cross-entropy of raw inner products: the softmax loss that the paper starts from."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import check_smoothing, scale_of_logits, set_field
from tammes.losses.learnable import Scale
from tammes.losses.normface import normface
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(SampleTerm):
    """Cross-entropy of raw inner products, without normalization or bias (paper, eq. 2.1).

    Printed as CE, which is another name of this class.
    Theorem 3.1: it approaches its infimum with any class margin in (0, pi / 2], so it guarantees none.
    `normalize=True` uses cosines times `scale` instead, which is `NormFace`.
    """

    text_name: ClassVar[str] = "CE"

    normalize: bool = False
    scale: Scale = 1.0
    label_smoothing: float = 0.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, *, normalize: bool = False, scale: Scale = 1.0, label_smoothing: float = 0.0
        ) -> None: ...
        @overload
        def __init__(
            self, *, normalize: bool = False, s: Scale = 1.0, label_smoothing: float = 0.0
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", scale_of_logits("CE", self.normalize, self.scale))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        space = "cosine" if self.normalize else "raw"
        return Need(space, self.scale, smoothing=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return normface(scores, label_smoothing=self.label_smoothing)


CE = CrossEntropy
"""The name that the text form prints."""
