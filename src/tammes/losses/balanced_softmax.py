"""Balanced Softmax: cross-entropy with the class frequencies in the logits (Ren et al. 2020)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import counts_for, one_per_class, scale_of_logits, set_field
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores, softmax_loss


def log_priors(counts: Sequence[float]) -> tuple[float, ...]:
    """Logarithm of each class's share of the samples.

    >>> [round(x, 4) for x in log_priors([75, 25])]
    [-0.2877, -1.3863]
    """
    numbers = [checks.positive(f"The count of class {j}", float(n)) for j, n in enumerate(counts)]
    total = sum(numbers)
    return tuple(math.log(n / total) for n in numbers)


def class_adjusted_softmax(
    scores: Scores, *, offset: PerSample, factor: float | PerSample = 1.0
) -> PerSample:
    r"""Softmax loss whose logits have a factor and an offset per class.

    .. math::
        \ell_i = -\log \frac{e^{a_{y_i} s c_{i y_i} + b_{y_i}}}{\sum_j e^{a_j s c_{ij} + b_j}}

    `scores.rest` already contains the wrong classes; `factor` and `offset` are those of the labels.
    """
    return softmax_loss(scores, factor * scores.scale * scores.target + offset)


@dataclass(frozen=True, kw_only=True)
class BalancedSoftmax(SampleTerm):
    r"""Softmax loss with the logarithm of the class counts added to the logits.

    .. math::
        \ell_i = -\log \frac{n_{y_i} e^{s c_{i y_i}}}{\sum_j n_j e^{s c_{ij}}}

    For long-tailed data: predictions use the plain logits, as if classes were balanced. Equals
    `LogitAdjusted` with tau = 1. `counts` default to the head's `class_counts`. Uses raw inner products, or
    cosines times `scale` with `normalize=True`.

    Reference: Ren et al., "Balanced meta-softmax for long-tailed visual recognition", 2020.
    """

    text_name: ClassVar[str] = "BalancedSoftmax"

    counts: Sequence[float] | None = None
    normalize: bool = False
    scale: Scale = 1.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, *, counts: Sequence[float] | None = None, normalize: bool = False, scale: Scale = 1.0
        ) -> None: ...
        @overload
        def __init__(
            self, *, counts: Sequence[float] | None = None, normalize: bool = False, s: Scale = 1.0
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", scale_of_logits("BalancedSoftmax", self.normalize, self.scale))
        if self.counts is not None:
            set_field(self, "counts", one_per_class("BalancedSoftmax's counts", self.counts))
            log_priors(self.counts)

    @property
    def need(self) -> Need:
        return Need("cosine" if self.normalize else "raw", self.scale, class_logits=True)

    def class_values(self, counts: tuple[float, ...] | None) -> Mapping[str, tuple[float, ...]]:
        return {"offset": log_priors(counts_for("BalancedSoftmax", self.counts, counts))}

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return class_adjusted_softmax(scores, offset=own["offset"])
