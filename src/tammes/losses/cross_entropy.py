"""Cross-entropy of plain inner products: the softmax loss that the paper starts from."""

from dataclasses import dataclass
from typing import ClassVar

from tammes import checks
from tammes.losses.normface import normface
from tammes.losses.objective import SampleTerm, check_smoothing, set_field
from tammes.losses.scores import Scores
from tammes.losses.statistics import Need
from tammes.types import PerSample


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(SampleTerm):
    """`normface` of raw inner products: softmax without normalisation, without bias (paper, eq. 2.1).

    Theorem 3.1: its infimum is approached with any class margin in (0, pi / 2], so it promises none.
    `normalize=True` gives cosines, and then `scale` applies.
    """

    text_name: ClassVar[str] = "CE"

    normalize: bool = False
    scale: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_raw_scale("CE", self.normalize, self.scale)
        set_field(self, "scale", checks.positive("CE's scale", self.scale))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        space = "cosine" if self.normalize else "raw"
        return Need(space, self.scale, mean=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return normface(scores, label_smoothing=self.label_smoothing)


def check_raw_scale(name: str, normalize: bool, scale: float) -> None:
    """A scale belongs to cosines: raw inner products carry their own."""
    checks.boolean(f"{name}'s normalize", normalize)
    if not normalize and scale != 1:
        raise ValueError(f"{name} of raw inner products has no scale, got s={scale}. Add normalize=True.")
