"""LDAM: CosFace with larger margins for rarer classes (Cao et al. 2019)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tammes import checks
from tammes.losses.cosface import cosface
from tammes.losses.objective import SampleTerm, check_smoothing, one_per_class, set_field
from tammes.losses.scores import Scores
from tammes.losses.statistics import Need
from tammes.types import PerSample


def ldam_margins(
    counts: Sequence[float], *, max_margin: float = 0.5, C: float | None = None
) -> tuple[float, ...]:
    r"""Margins :math:`C n_j^{-1/4}` of classes with :math:`n_j` samples; the rarest gets `max_margin`
    unless C is given.

    >>> ldam_margins([10_000, 625], max_margin=0.5)
    (0.25, 0.5)
    """
    roots = [checks.positive(f"The count of class {j}", float(n)) ** -0.25 for j, n in enumerate(counts)]
    factor = max_margin / max(roots) if C is None else C
    return tuple(factor * root for root in roots)


@dataclass(frozen=True, kw_only=True)
class LDAM(SampleTerm):
    """`cosface` with `ldam_margins`, of `counts` or else of the head's `class_counts`.

    Reference: Cao, Wei, Gaidon, Arechiga, Ma, "Learning imbalanced datasets with label-distribution-aware
    margin loss", 2019 (its code uses s = 30; the paper at hand s = 5).
    """

    text_name: ClassVar[str] = "LDAM"

    scale: float
    counts: Sequence[float] | None = None
    max_margin: float = 0.5
    C: float | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        set_field(self, "scale", checks.positive("LDAM's scale", self.scale))
        set_field(self, "max_margin", checks.within("LDAM's max_margin", self.max_margin, 0.0, 2.0))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))
        if self.C is not None:
            set_field(self, "C", checks.positive("LDAM's C", self.C))
        if self.counts is not None:
            set_field(self, "counts", one_per_class("LDAM's counts", self.counts))
            ldam_margins(self.counts)

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, mean=self.label_smoothing > 0)

    def class_values(self, counts: tuple[float, ...] | None) -> Mapping[str, tuple[float, ...]]:
        own = counts if self.counts is None else self.counts
        if own is None:
            raise ValueError(
                "LDAM needs the class counts: LDAM(counts=[...]), or class_counts= of the head or the call."
            )
        return {"margin": ldam_margins(own, max_margin=self.max_margin, C=self.C)}

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return cosface(scores, margin=own["margin"], label_smoothing=self.label_smoothing)
