"""Label-aware smoothing: the more images a class has, the softer its labels (Zhong et al. 2021, MiSLAS)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tammes import checks
from tammes.losses.cross_entropy import check_raw_scale
from tammes.losses.objective import SampleTerm, one_per_class, set_field
from tammes.losses.scores import Scores, softmax_loss
from tammes.losses.statistics import Need
from tammes.types import PerSample


def label_aware_smoothing(
    counts: Sequence[float], *, head: float = 0.3, tail: float = 0.0
) -> tuple[float, ...]:
    r"""How much of its label each class gives away: `tail` for the rarest class up to `head` for the largest.

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
    r"""Softmax loss whose target is :math:`1 - \epsilon` for the true class, the rest shared by the others.

    .. math::
        \ell_i = -(1 - \epsilon) \log p_{y_i} - \frac{\epsilon}{k-1} \sum_{j \ne y_i} \log p_j
    """
    k = scores.num_classes
    # torch's smoothing gives the true class its share too: k / (k - 1) times as much comes to the same.
    return softmax_loss(scores, scores.scale * scores.target, smoothing * (k / (k - 1)))


@dataclass(frozen=True, kw_only=True)
class LabelAware(SampleTerm):
    """`label_aware` with `label_aware_smoothing`, of `counts` or else of the head's `class_counts`.

    Of raw inner products unless `normalize=True`, and then `scale` applies.

    Reference: Zhong, Cui, Liu, Jia, "Improving calibration for long-tailed recognition", 2021.
    """

    text_name: ClassVar[str] = "LAS"

    head: float = 0.3
    tail: float = 0.0
    counts: Sequence[float] | None = None
    normalize: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_raw_scale("LAS", self.normalize, self.scale)
        set_field(self, "scale", checks.positive("LAS's scale", self.scale))
        for name in ("head", "tail"):
            set_field(self, name, checks.within(f"LAS's {name}", getattr(self, name), 0.0, 1.0))
        if self.counts is not None:
            set_field(self, "counts", one_per_class("LAS's counts", self.counts))
            label_aware_smoothing(self.counts)

    @property
    def need(self) -> Need:
        return Need("cosine" if self.normalize else "raw", self.scale, mean=True)

    def class_values(self, counts: tuple[float, ...] | None) -> Mapping[str, tuple[float, ...]]:
        own = counts if self.counts is None else self.counts
        if own is None:
            raise ValueError(
                "LAS needs the class counts: LAS(counts=[...]), or class_counts= of the head or the call."
            )
        return {"smoothing": label_aware_smoothing(own, head=self.head, tail=self.tail)}

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return label_aware(scores, smoothing=own["smoothing"])
