"""Results on classes that were not in the training set, together with the margins of the prototypes."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tammes._common.types import ClassPrototypes
from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.margins import nearest_prototypes


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenSetEvaluation:
    """Results of an open-set evaluation.

    Attributes:
        headline: Name of the headline metric.
        found: Metrics by name.
        class_margin: Smallest angle between two prototypes, in radians.
        class_margin_maximum: Largest possible class margin; an upper bound unless `maximum_is_exact`.
        arrays: Further arrays to keep.
    """

    headline: str
    found: dict[str, float]
    class_margin: float
    class_margin_maximum: float
    maximum_is_exact: bool
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(
        cls, weight: ClassPrototypes, headline: str, found: dict[str, float], arrays: dict[str, np.ndarray]
    ) -> "OpenSetEvaluation":
        """Construct an evaluation, adding the margins of the prototypes `weight`."""
        maximum = largest_class_margin(len(weight), weight.shape[-1])
        return cls(
            headline=headline,
            found=found,
            class_margin=float(nearest_prototypes(weight).angle.min()),
            class_margin_maximum=maximum.angle,
            maximum_is_exact=maximum.exact,
            arrays=arrays,
        )

    @property
    def score(self) -> float:
        """Value of the headline metric."""
        return self.found[self.headline]

    def numbers(self) -> dict[str, Any]:
        """All numbers, without arrays, for records and tables; angles in degrees."""
        return self.found | {
            "class_margin_deg": math.degrees(self.class_margin),
            "class_margin_maximum_deg": math.degrees(self.class_margin_maximum),
            "maximum_is_exact": self.maximum_is_exact,
        }
