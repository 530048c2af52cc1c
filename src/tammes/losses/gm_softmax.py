"""GM-Softmax: the paper's generalised margin softmax (eq. 3.3)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from tammes import checks
from tammes.losses.objective import PerClassValue, SampleTerm, per_class_margin, set_field
from tammes.losses.scores import Scores
from tammes.losses.statistics import Need
from tammes.types import PerSample

LARGEST = 1e6


def gm_softmax(
    scores: Scores,
    *,
    alpha1: float | PerSample,
    alpha2: float | PerSample,
    beta1: float | PerSample,
    beta2: float | PerSample,
) -> PerSample:
    r"""Softmax loss whose numerator and denominator see different lines of the target cosine.

    .. math::
        \ell_i = \log\bigl(e^{s (\alpha_2 t + \beta_2)} + \sum_{j \ne y_i} e^{s c_{ij}}\bigr)
                 - s (\alpha_1 t + \beta_1), \qquad t = c_{i y_i}

    The four may be numbers or one per sample. On balanced classes with k <= d + 1 and
    alpha1 >= (k - 2) / (2k - 2), alpha2 <= alpha1, it is least at the simplex (Theorem 3.2; its bound
    is printed with a wrong sign, see :func:`tammes.theory.gm_softmax_bound`).

    >>> from torch import tensor
    >>> scores = Scores.of(tensor([[1.0, -0.5, -0.5]]), tensor([0]), scale=2.0)
    >>> gm_softmax(scores, alpha1=1.0, alpha2=1.0, beta1=0.0, beta2=0.0)
    tensor([0.0949])
    """
    # The numerator goes inside the logarithm first, where a loss near zero keeps its digits.
    numerator = scores.scale * (alpha1 * scores.target + beta1)
    target = scores.scale * ((alpha2 - alpha1) * scores.target + (beta2 - beta1))
    return torch.logaddexp(scores.rest - numerator, target)


@dataclass(frozen=True, kw_only=True)
class GMSoftmax(SampleTerm):
    """`gm_softmax` as a term; each of the four may be a sequence with one number per class."""

    text_name: ClassVar[str] = "GMSoftmax"

    scale: float
    alpha1: PerClassValue = 1.0
    alpha2: PerClassValue = 1.0
    beta1: PerClassValue = 0.0
    beta2: PerClassValue = 0.0

    def __post_init__(self) -> None:
        set_field(self, "scale", checks.positive("GMSoftmax's scale", self.scale))
        for name in ("alpha1", "alpha2", "beta1", "beta2"):
            low = 0.0 if name == "alpha1" else -LARGEST
            value = per_class_margin(f"GMSoftmax's {name}", getattr(self, name), low, LARGEST)
            set_field(self, name, value)

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        names = ("alpha1", "alpha2", "beta1", "beta2")
        return gm_softmax(scores, **{name: self.value(name, own) for name in names})
