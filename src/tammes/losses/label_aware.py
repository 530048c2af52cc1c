"""Label-aware smoothing: more smoothing for more frequent classes (Zhong et al. 2021, MiSLAS)."""

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


def label_aware_smoothing(
    counts: Sequence[float], *, head: float = 0.3, tail: float = 0.0
) -> tuple[float, ...]:
    r"""Label smoothing per class, from `tail` for the rarest class to `head` for the most frequent.

    .. math::
        \epsilon_y = \epsilon_{tail} + (\epsilon_{head} - \epsilon_{tail})
            \sin \frac{\pi (n_y - n_{min})}{2 (n_{max} - n_{min})}

    >>> [round(e, 4) for e in label_aware_smoothing([300, 200, 100], head=0.4)]
    [0.4, 0.2828, 0.0]
    """
    numbers = [checks.positive(f"The count of class {j}", float(n)) for j, n in enumerate(counts)]
    least, most = min(numbers), max(numbers)
    spread = (most - least) or 1.0
    return tuple(tail + (head - tail) * math.sin(math.pi / 2 * (n - least) / spread) for n in numbers)


def label_aware(scores: Scores, *, smoothing: PerSample) -> PerSample:
    r"""Softmax loss with target :math:`1 - \epsilon` on the true class and the rest spread over the others.

    .. math::
        \ell_i = -(1 - \epsilon) \log p_{y_i} - \frac{\epsilon}{k-1} \sum_{j \ne y_i} \log p_j
    """
    k = scores.num_classes
    # torch also spreads smoothing over the true class: k / (k - 1) times as much is equivalent.
    return softmax_loss(scores, scores.scale * scores.target, smoothing * (k / (k - 1)))


@dataclass(frozen=True, kw_only=True)
class LabelAware(SampleTerm):
    """Cross-entropy with label smoothing that is stronger for frequent classes: `label_aware_smoothing`.

    The class counts are `counts`, by default the head's `class_counts`. Formula:
    `tammes.losses.functional.label_aware`.

    Printed as LAS, which is another name of this class.
    Uses raw inner products, or cosines times `scale` with `normalize=True`.

    Reference: Zhong, Cui, Liu, Jia, "Improving calibration for long-tailed recognition", 2021.
    """

    text_name: ClassVar[str] = "LAS"

    head: float = 0.3
    tail: float = 0.0
    counts: Sequence[float] | None = None
    normalize: bool = False
    scale: Scale = 1.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            head: float = 0.3,
            tail: float = 0.0,
            counts: Sequence[float] | None = None,
            normalize: bool = False,
            scale: Scale = 1.0,
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            head: float = 0.3,
            tail: float = 0.0,
            counts: Sequence[float] | None = None,
            normalize: bool = False,
            s: Scale = 1.0,
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", scale_of_logits("LAS", self.normalize, self.scale))
        for name in ("head", "tail"):
            set_field(self, name, checks.within(f"LAS's {name}", getattr(self, name), 0.0, 1.0))
        if self.counts is not None:
            set_field(self, "counts", one_per_class("LAS's counts", self.counts))
            label_aware_smoothing(self.counts)

    @property
    def need(self) -> Need:
        return Need("cosine" if self.normalize else "raw", self.scale, smoothing=True)

    def class_values(self, counts: tuple[float, ...] | None) -> Mapping[str, tuple[float, ...]]:
        own = counts_for("LAS", self.counts, counts)
        return {"smoothing": label_aware_smoothing(own, head=self.head, tail=self.tail)}

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return label_aware(scores, smoothing=own["smoothing"])


LAS = LabelAware
"""The name that the text form prints."""
