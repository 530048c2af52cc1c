"""VS: vector scaling, a factor and an offset per class in the logits (Kini et al. 2021)."""

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
class VectorScaling(SampleTerm):
    r"""Softmax loss over logits scaled and shifted by class frequency.

    .. math::
        \ell_i = -\log \frac{e^{\Delta_{y_i} s c_{i y_i} + \iota_{y_i}}}
            {\sum_j e^{\Delta_j s c_{ij} + \iota_j}},
            \qquad \Delta_j = (n_j / n_{max})^\gamma, \quad \iota_j = \tau \log \pi_j

    Printed as VS, which is another name of this class.
    gamma = 0 gives `LogitAdjusted`, tau = 0 the CDT loss of Ye et al. 2020. `counts` default to the head's
    `class_counts`. Uses raw inner products, or cosines times `scale` with `normalize=True`.

    Reference: Kini, Paraskevas, Oymak, Thrampoulidis, "Label-imbalanced and group-sensitive classification
    under overparameterization", 2021.
    """

    text_name: ClassVar[str] = "VS"

    gamma: float = 0.3
    tau: float = 1.0
    counts: Sequence[float] | None = None
    normalize: bool = False
    scale: Scale = 1.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            gamma: float = 0.3,
            tau: float = 1.0,
            counts: Sequence[float] | None = None,
            normalize: bool = False,
            scale: Scale = 1.0,
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            gamma: float = 0.3,
            tau: float = 1.0,
            counts: Sequence[float] | None = None,
            normalize: bool = False,
            s: Scale = 1.0,
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", scale_of_logits("VS", self.normalize, self.scale))
        set_field(self, "gamma", checks.within("VS's gamma", self.gamma, 0.0, 10.0))
        set_field(self, "tau", checks.within("VS's tau", self.tau, 0.0, 10.0))
        if self.counts is not None:
            set_field(self, "counts", one_per_class("VS's counts", self.counts))
            log_priors(self.counts)

    @property
    def need(self) -> Need:
        return Need("cosine" if self.normalize else "raw", self.scale, class_logits=True)

    def class_values(self, counts: tuple[float, ...] | None) -> Mapping[str, tuple[float, ...]]:
        own = counts_for("VS", self.counts, counts)
        most = max(own)
        return {
            "factor": tuple((n / most) ** self.gamma for n in own),
            "offset": tuple(self.tau * log for log in log_priors(own)),
        }

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return class_adjusted_softmax(scores, offset=own["offset"], factor=own["factor"])


VS = VectorScaling
"""The name that the text form prints."""
