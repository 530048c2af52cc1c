"""LM-Softmax: the paper's largest-margin softmax (eq. 3.5), with the reduction its theory needs."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from tammes import checks
from tammes.losses.objective import SampleTerm, set_field
from tammes.losses.scores import Scores
from tammes.losses.statistics import Need
from tammes.types import PerSample


def lm_softmax(scores: Scores) -> PerSample:
    r"""Softmax loss whose denominator leaves out the true class (paper, eq. 3.5).

    .. math::
        \ell_i = \tfrac{1}{s} \log \sum_{j \ne y_i} e^{s (c_{ij} - c_{i y_i})}

    Tends to minus the sample margin as s grows, so it can be negative: for k <= d + 1 its least value
    is log(k - 1) / s - k / (k - 1). It is 1/s times GM-Softmax with beta2 -> -inf (not alpha2 as
    printed: with that the target's term is large wherever the cosine is negative).

    Returns one loss per sample; reducing is the caller's choice.

    >>> from torch import tensor
    >>> lm_softmax(Scores.of(tensor([[1.0, -0.5, -0.5]]), tensor([0]), scale=10.0))
    tensor([-1.4307])
    """
    return scores.rest / scores.scale - scores.target


@dataclass(frozen=True, kw_only=True)
class LMSoftmax(SampleTerm):
    r"""`lm_softmax` reduced over the batch.

    `reduction="mean"` is the paper's. As s grows it tends to the *mean* margin, which more classes than
    d + 1, or classes of unequal size, make a poor guide: prototypes may coincide (erratum 2).
    `"lse"` is what the theory of eq. 3.6 asks for, :math:`\frac{1}{s} \log \sum_i e^{s \ell_i}`: it
    tends to minus the smallest margin for every k, d and imbalance. It is exact on the full batch; the
    value of a mini-batch stands for itself, and it does not accumulate over several. `"none"` leaves
    one value per sample.
    """

    text_name: ClassVar[str] = "LMSoftmax"

    scale: float
    reduction: Literal["mean", "lse", "none"] = "mean"

    def __post_init__(self) -> None:
        set_field(self, "scale", checks.positive("LMSoftmax's scale", self.scale))
        checks.one_of("LMSoftmax's reduction", self.reduction, ("mean", "lse", "none"))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return lm_softmax(scores)
