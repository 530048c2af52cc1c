"""What a page is about: a model with its measures, its record and its history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """A run, or a model from elsewhere.

    Attributes:
        name: what the page calls it.
        data: the name of the data set.
        classes: names in label order.
        dimensions: d, the width of the embeddings.
        numbers: as `Evaluation.numbers()` gives them, or other measures beside the class margin.
        arrays: as `Evaluation.arrays` has them; of an older run, and of one that is measured on other
            classes than it was trained on, some are missing.
        prototypes: one a row, where they are known.
        epochs: the numbers after each epoch of training, where there were any.
        record: settings, seed, versions, machine, date and time: what `result.json` holds.
        notes: what has to be known besides, such as what was left out and why.
        verified: for each list of pairs its `scores`, which are of the `same` person, the `threshold` and the
            worst mistakes.
    """

    name: str
    data: str
    classes: Sequence[str]
    dimensions: int
    numbers: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    prototypes: np.ndarray | None = None
    epochs: Sequence[Mapping[str, Any]] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    verified: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name, and the objective where it is known."""
        objective = self.record.get("config", {}).get("objective")
        return f"{self.name}: {objective}" if objective else self.name

    @property
    def samples(self) -> int:
        """How many samples were measured."""
        return len(self.arrays["label"])

    @property
    def never_negative(self) -> bool:
        """Whether signs, and not dimensions, keep the prototypes within right angles."""
        k, most = len(self.classes), self.numbers["class_margin_maximum_deg"]
        return 2 <= k <= self.dimensions + 1 and most < 90.001

    @property
    def sees_lengths(self) -> bool:
        """Whether some answers are not those of the nearest prototype, as with cross-entropy."""
        if "sample_margin" not in self.arrays:
            return False
        margin, right = self.arrays["sample_margin"], self.arrays["label"] == self.arrays["prediction"]
        return bool(((margin > 1e-6) & ~right).any() or ((margin < -1e-6) & right).any())

    def closest(self) -> tuple[str, str]:
        """The two classes whose prototypes are the closest."""
        one = int(np.argmin(self.arrays["nearest_angle"]))
        return self.classes[one], self.classes[int(self.arrays["nearest_class"][one])]


def units(rows: np.ndarray) -> np.ndarray:
    """Each row scaled to length 1, in float64; a zero row stays zero."""
    rows = np.asarray(rows, np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)
