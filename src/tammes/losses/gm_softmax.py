"""GM-Softmax: the paper's generalized margin softmax (eq. 3.3)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

import torch

from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import PerClassValue, per_class_margin, positive_scale, set_field
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores

LARGEST = 1e6


def gm_softmax(
    scores: Scores,
    *,
    alpha1: float | PerSample,
    alpha2: float | PerSample,
    beta1: float | PerSample,
    beta2: float | PerSample,
) -> PerSample:
    r"""Softmax loss with separate affine functions of the target cosine in numerator and denominator.

    .. math::
        \ell_i = \log\bigl(e^{s (\alpha_2 t + \beta_2)} + \sum_{j \ne y_i} e^{s c_{ij}}\bigr)
                 - s (\alpha_1 t + \beta_1), \qquad t = c_{i y_i}

    Each parameter may be one number or one per sample. For balanced classes with k <= d + 1,
    alpha1 >= (k - 2) / (2k - 2) and alpha2 <= alpha1, the simplex minimizes it (Theorem 3.2, whose bound is
    printed with a wrong sign, see :func:`tammes.theory.gm_softmax_bound`).

    >>> from torch import tensor
    >>> scores = Scores.of(tensor([[1.0, -0.5, -0.5]]), tensor([0]), scale=2.0)
    >>> gm_softmax(scores, alpha1=1.0, alpha2=1.0, beta1=0.0, beta2=0.0)
    tensor([0.0949])
    """
    # Move the numerator inside the logarithm first, so that losses near zero keep their precision.
    numerator = scores.scale * (alpha1 * scores.target + beta1)
    target = scores.scale * ((alpha2 - alpha1) * scores.target + (beta2 - beta1))
    return torch.logaddexp(scores.rest - numerator, target)


@dataclass(frozen=True, kw_only=True)
class GMSoftmax(SampleTerm):
    """Softmax loss with general margins (paper, eq. 3.3): two affine functions of the target cosine.

    Each parameter is one number or one per class. Formula: `tammes.losses.functional.gm_softmax`.
    """

    text_name: ClassVar[str] = "GMSoftmax"

    scale: Scale
    alpha1: PerClassValue = 1.0
    alpha2: PerClassValue = 1.0
    beta1: PerClassValue = 0.0
    beta2: PerClassValue = 0.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            scale: Scale,
            alpha1: PerClassValue = 1.0,
            alpha2: PerClassValue = 1.0,
            beta1: PerClassValue = 0.0,
            beta2: PerClassValue = 0.0,
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            s: Scale,
            alpha1: PerClassValue = 1.0,
            alpha2: PerClassValue = 1.0,
            beta1: PerClassValue = 0.0,
            beta2: PerClassValue = 0.0,
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("GMSoftmax's scale", self.scale))
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
