"""NormFace: softmax over scaled cosines (Wang et al. 2017)."""

from dataclasses import dataclass
from typing import ClassVar

from tammes import checks
from tammes.losses.objective import SampleTerm, check_smoothing, set_field
from tammes.losses.scores import Scores, softmax_loss
from tammes.losses.statistics import Need
from tammes.types import PerSample


def normface(scores: Scores, *, label_smoothing: float = 0.0) -> PerSample:
    r"""Softmax loss of unit features against unit prototypes.

    .. math::
        \ell_i = -\log \frac{e^{s c_{i y_i}}}{\sum_j e^{s c_{ij}}}

    At the simplex (k <= d + 1) it is least: :math:`\log(1 + (k - 1) e^{-s k / (k - 1)})`.

    >>> from torch import tensor
    >>> normface(Scores.of(tensor([[1.0, -0.5, -0.5]]), tensor([0]), scale=2.0))
    tensor([0.0949])

    Reference: Wang, Xiang, Cheng, Yuille, "NormFace: L2 hypersphere embedding for face verification", 2017.
    """
    return softmax_loss(scores, scores.scale * scores.target, label_smoothing)


@dataclass(frozen=True, kw_only=True)
class NormFace(SampleTerm):
    """`normface` as a term."""

    text_name: ClassVar[str] = "NormFace"

    scale: float
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        set_field(self, "scale", checks.positive("NormFace's scale", self.scale))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, mean=self.label_smoothing > 0)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return normface(scores, label_smoothing=self.label_smoothing)
