"""The results of one model, as input to a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tammes.lab.report.thumbnails import Photo


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelResults:
    """A training run, or a model trained elsewhere, with its evaluation.

    Attributes:
        name: what the page calls it.
        data: name of the data set.
        classes: names in label order.
        dimensions: d, the width of the embeddings.
        numbers: as from `Evaluation.numbers()`, or other measures beside the class margin.
        arrays: as in `Evaluation.arrays`. Runs written by older versions, and runs tested on other classes
            than they were trained on, lack some of them.
        prototypes: (k, d), or (k, c, d) with several per class, if known.
        epochs: the measures after each epoch of training, if any.
        record: settings, seed, versions, machine, date and time, as in `result.json`.
        notes: what a reader should know first, such as the number of skipped samples and the reason.
        verified: for each list of pairs its `scores`, which pairs are of the `same` person, the `threshold`
            and the worst mistakes.
        photos: of some samples.
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
    photos: Mapping[int, Photo] = field(default_factory=dict)

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings, empty for a model trained elsewhere."""
        return self.record.get("config", {})

    @property
    def label(self) -> str:
        """The name, and the objective if known."""
        objective = self.config.get("objective")
        return f"{self.name}: {objective}" if objective else self.name

    @property
    def samples(self) -> int:
        """Number of samples measured."""
        return len(self.arrays["label"])

    @property
    def correct(self) -> np.ndarray:
        """Which samples are classified correctly."""
        return self.arrays["label"] == self.arrays["prediction"]

    @property
    def nonnegative_prototypes(self) -> bool:
        """Whether the class margin is limited by signs (no negative entries), not by the dimension."""
        k, maximum = len(self.classes), self.numbers["class_margin_maximum_deg"]
        return 2 <= k <= self.dimensions + 1 and maximum < 90.001

    @property
    def uses_norms(self) -> bool:
        """Whether some predictions differ from the nearest prototype, as with plain cross-entropy."""
        if "sample_margin" not in self.arrays:
            return False
        margin = self.arrays["sample_margin"]
        return bool(((margin > 1e-6) & ~self.correct).any() or ((margin < -1e-6) & self.correct).any())

    def photo_cards(self, samples: Sequence[int]) -> list[dict[str, Any]]:
        """Photo, true and predicted class of those samples that have a photo."""
        cards = []
        for sample in samples:
            if sample in self.photos:
                truth, given = (self.classes[int(self.arrays[n][sample])] for n in ("label", "prediction"))
                label = truth if truth == given else f"{truth}, taken for {given}"
                cards.append({"photo": self.photos[sample], "truth": truth, "prediction": given})
                cards[-1] |= {"right": bool(self.correct[sample]), "label": label}
        return cards

    def closest_pair(self) -> tuple[str, str]:
        """The two classes whose prototypes are closest."""
        one = int(np.argmin(self.arrays["nearest_angle"]))
        return self.classes[one], self.classes[int(self.arrays["nearest_class"][one])]


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Each row scaled to length 1, in float64; a zero row stays zero."""
    rows = np.asarray(rows, np.float64)
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)
