"""LM-Softmax: the paper's largest-margin softmax (eq. 3.5), with the reduction its theory needs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import positive_scale, set_field
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores


def lm_softmax(scores: Scores) -> PerSample:
    r"""Softmax loss without the true class in the denominator (paper, eq. 3.5).

    .. math::
        \ell_i = \tfrac{1}{s} \log \sum_{j \ne y_i} e^{s (c_{ij} - c_{i y_i})}

    Tends to the negative sample margin as s grows, so it can be negative: for k <= d + 1 its minimum
    is log(k - 1) / s - k / (k - 1). It is 1/s times GM-Softmax in the limit beta2 -> -inf (not alpha2 -> -inf
    as printed: there the target's term blows up wherever the cosine is negative).

    >>> from torch import tensor
    >>> lm_softmax(Scores.of(tensor([[1.0, -0.5, -0.5]]), tensor([0]), scale=10.0))
    tensor([-1.4307])
    """
    return scores.rest / scores.scale - scores.target


@dataclass(frozen=True, kw_only=True)
class LMSoftmax(SampleTerm):
    r"""Largest-margin softmax (paper, eq. 3.5): a softmax loss without the true class in the denominator.

    Formula: `tammes.losses.functional.lm_softmax`; `scale` is s.

    `reduction="mean"` is the paper's. As s grows it tends to the negative *mean* margin. With more than
    d + 1 classes, or with imbalanced classes, its optimum may let prototypes coincide (erratum 2).
    `"lse"` is the reduction that the theory requires (eq. 3.6),
    :math:`\frac{1}{s} \log \sum_i e^{s \ell_i}`: it tends to minus the smallest margin for every k, d and
    imbalance. It is exact on the full batch only: mini-batch values do not add up under gradient
    accumulation. `"none"` returns one value per sample.
    """

    text_name: ClassVar[str] = "LMSoftmax"

    scale: Scale
    reduction: Literal["mean", "lse", "none"] = "mean"

    if TYPE_CHECKING:

        @overload
        def __init__(self, *, scale: Scale, reduction: Literal["mean", "lse", "none"] = "mean") -> None: ...
        @overload
        def __init__(self, *, s: Scale, reduction: Literal["mean", "lse", "none"] = "mean") -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("LMSoftmax's scale", self.scale))
        checks.one_of("LMSoftmax's reduction", self.reduction, ("mean", "lse", "none"))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return lm_softmax(scores)
