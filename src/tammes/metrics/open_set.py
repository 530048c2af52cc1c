"""What a network shows on people or things it was not trained on, beside the margins of its prototypes."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.margins import nearest_prototypes
from tammes.types import Prototypes


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenSetEvaluation:
    """The numbers of an open-set test.

    Attributes:
        headline: the name of the number by which a run is judged.
        found: numbers by name.
        class_margin: smallest angle between two prototypes, in radians.
        class_margin_maximum: the largest there can be, or a bound of it unless `maximum_is_exact`.
        arrays: what else is to be kept.
    """

    headline: str
    found: dict[str, float]
    class_margin: float
    class_margin_maximum: float
    maximum_is_exact: bool
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(
        cls, weight: Prototypes, headline: str, found: dict[str, float], arrays: dict[str, np.ndarray]
    ) -> "OpenSetEvaluation":
        """With the margins of the prototypes `weight`."""
        maximum = largest_class_margin(*weight.shape)
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
        """The headline number."""
        return self.found[self.headline]

    def numbers(self) -> dict[str, Any]:
        """For records and tables: no arrays, angles in degrees."""
        return self.found | {
            "class_margin_deg": math.degrees(self.class_margin),
            "class_margin_maximum_deg": math.degrees(self.class_margin_maximum),
            "maximum_is_exact": self.maximum_is_exact,
        }
