"""Logit-adjusted cross-entropy: a multiple of the log class priors in the logits (Menon et al. 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import counts_for, one_per_class, scale_of_logits, set_field
from tammes.losses.balanced_softmax import class_adjusted_softmax, log_priors
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores


@dataclass(frozen=True, kw_only=True)
class LogitAdjusted(SampleTerm):
    r"""Softmax loss with tau times the log class prior added to the logits.

    .. math::
        \ell_i = -\log \frac{e^{s c_{i y_i} + \tau \log \pi_{y_i}}}{\sum_j e^{s c_{ij} + \tau \log \pi_j}}

    For long-tailed data: predictions use the plain logits. tau = 1 is Fisher consistent for the balanced
    error and equals `BalancedSoftmax`. `counts` default to the head's `class_counts`. Uses raw inner
    products, or cosines times `scale` with `normalize=True`.

    Reference: Menon et al., "Long-tail learning via logit adjustment", 2021.
    """

    text_name: ClassVar[str] = "LogitAdjusted"

    tau: float = 1.0
    counts: Sequence[float] | None = None
    normalize: bool = False
    scale: Scale = 1.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            tau: float = 1.0,
            counts: Sequence[float] | None = None,
            normalize: bool = False,
            scale: Scale = 1.0,
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            tau: float = 1.0,
            counts: Sequence[float] | None = None,
            normalize: bool = False,
            s: Scale = 1.0,
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", scale_of_logits("LogitAdjusted", self.normalize, self.scale))
        set_field(self, "tau", checks.within("LogitAdjusted's tau", self.tau, 0.0, 10.0))
        if self.counts is not None:
            set_field(self, "counts", one_per_class("LogitAdjusted's counts", self.counts))
            log_priors(self.counts)

    @property
    def need(self) -> Need:
        return Need("cosine" if self.normalize else "raw", self.scale, class_logits=True)

    def class_values(self, counts: tuple[float, ...] | None) -> Mapping[str, tuple[float, ...]]:
        logs = log_priors(counts_for("LogitAdjusted", self.counts, counts))
        return {"offset": tuple(self.tau * log for log in logs)}

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return class_adjusted_softmax(scores, offset=own["offset"])
