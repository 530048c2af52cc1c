"""LDAM: CosFace with larger margins for rarer classes (Cao et al. 2019)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import check_smoothing, counts_for, one_per_class, positive_scale, set_field
from tammes.losses.cosface import cosface
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores


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
    """CosFace with larger margins for rare classes: `ldam_margins` of the class counts.

    The class counts are `counts`, by default the head's `class_counts`.

    Reference: Cao, Wei, Gaidon, Arechiga, Ma, "Learning imbalanced datasets with label-distribution-aware
    margin loss", 2019. Its code uses s = 30, whereas the largest-margins paper uses s = 5.
    """

    text_name: ClassVar[str] = "LDAM"

    scale: Scale
    counts: Sequence[float] | None = None
    max_margin: float = 0.5
    C: float | None = None
    label_smoothing: float = 0.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            scale: Scale,
            counts: Sequence[float] | None = None,
            max_margin: float = 0.5,
            C: float | None = None,
            label_smoothing: float = 0.0,
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            s: Scale,
            counts: Sequence[float] | None = None,
            max_margin: float = 0.5,
            C: float | None = None,
            label_smoothing: float = 0.0,
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("LDAM's scale", self.scale))
        set_field(self, "max_margin", checks.within("LDAM's max_margin", self.max_margin, 0.0, 2.0))
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))
        if self.C is not None:
            set_field(self, "C", checks.positive("LDAM's C", self.C))
        if self.counts is not None:
            set_field(self, "counts", one_per_class("LDAM's counts", self.counts))
            ldam_margins(self.counts)

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, smoothing=self.label_smoothing > 0)

    def class_values(self, counts: tuple[float, ...] | None) -> Mapping[str, tuple[float, ...]]:
        own = counts_for("LDAM", self.counts, counts)
        return {"margin": ldam_margins(own, max_margin=self.max_margin, C=self.C)}

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return cosface(scores, margin=own["margin"], label_smoothing=self.label_smoothing)
