"""Accuracy and margins of a classifier, with upper bounds on the margins."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tammes._common.types import ClassPrototypes, Embeddings, Labels, PerSample
from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.margins import nearest_prototypes, sample_margin_ceiling
from tammes.geometry.sphere import normalize
from tammes.metrics.calibration import expected_calibration_error
from tammes.metrics.shot_groups import accuracy_by_count


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """Results of one pass over the test set; sample margins are differences of cosines.

    Attributes:
        accuracy: Fraction of samples whose true class has the largest logit.
        class_margin: Smallest angle between two prototypes, in radians.
        class_margin_maximum: Largest possible class margin; an upper bound unless `maximum_is_exact`.
        sample_margin: Mean sample margin, m_samp of the paper.
        sample_margin_ceiling: Upper bound on it for balanced data; lower for non-negative features.
        gamma_min: Smallest sample margin.
        smallest_norm, largest_norm: Smallest and largest prototype norm.
        arrays: Per sample: `index` (in its split; unreadable images are missing), `label`, `prediction`,
            `sample_margin`, `similarity` (to its class). For a subset of samples, `shown`: the unit
            `embedding`. Per class: `class_accuracy`, `class_gamma` (smallest sample margin),
            `class_sample_margin` (mean), `nearest_class`, `nearest_angle`; NaN for classes without test
            samples. For imbalanced training sets also `confidence` per sample and `class_count` per class.
        more: Further numbers by name. For imbalanced training sets: `many`, `medium` and `few` (accuracy by
            number of training images), `mean_class_accuracy`, and `ece` (calibration).
    """

    accuracy: float
    class_margin: float
    class_margin_maximum: float
    maximum_is_exact: bool
    sample_margin: float
    sample_margin_ceiling: float
    gamma_min: float
    smallest_norm: float
    largest_norm: float
    arrays: dict[str, np.ndarray]
    more: dict[str, float] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """Name of the headline metric."""
        return "accuracy"

    @property
    def score(self) -> float:
        """Value of the headline metric."""
        return self.accuracy

    def numbers(self) -> dict[str, Any]:
        """All numbers, without arrays, for records and tables; angles in degrees."""
        return {
            "accuracy": self.accuracy,
            "class_margin_deg": math.degrees(self.class_margin),
            "class_margin_maximum_deg": math.degrees(self.class_margin_maximum),
            "maximum_is_exact": self.maximum_is_exact,
            "sample_margin": self.sample_margin,
            "sample_margin_ceiling": self.sample_margin_ceiling,
            "gamma_min": self.gamma_min,
            "smallest_norm": self.smallest_norm,
            "largest_norm": self.largest_norm,
            **self.more,
        }

    def per_class(self, classes: Sequence[str]) -> list[dict[str, Any]]:
        """The numbers of each class; None for classes without test samples."""
        arrays = self.arrays
        return [
            {
                "class": name,
                "accuracy": _number(arrays["class_accuracy"][j]),
                "sample_margin": _number(arrays["class_sample_margin"][j]),
                "gamma": _number(arrays["class_gamma"][j]),
                "nearest_class": classes[arrays["nearest_class"][j]],
                "nearest_angle_deg": math.degrees(arrays["nearest_angle"][j]),
            }
            for j, name in enumerate(classes)
        ]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def own_similarities(embeddings: Embeddings, weight: ClassPrototypes, labels: Labels) -> PerSample:
    """Cosine of each sample with the prototype of its class, or with the most similar one of several."""
    units = normalize(embeddings)
    own = weight.reshape(len(weight), -1, units.shape[1])[labels]
    return (units[:, None] * normalize(own)).sum(-1).amax(1)


def summarize(weight: ClassPrototypes, samples: dict[str, np.ndarray], *, nonnegative: bool) -> Evaluation:
    """Compute an `Evaluation` from per-sample arrays.

    Args:
        weight: Prototypes, (k, d), or (k, c, d) with several per class.
        samples: `label`, `prediction` and `sample_margin`; for imbalanced classes `confidence` and the
            per-class `class_count`; any further arrays are kept.
        nonnegative: Whether embeddings are non-negative, as after a ReLU.
    """
    label, margin = samples["label"], samples["sample_margin"]
    k, d = len(weight), weight.shape[-1]
    nearest = nearest_prototypes(weight)
    maximum, norms = largest_class_margin(k, d), weight.detach().norm(dim=-1)
    correct = (label == samples["prediction"]).astype(np.float64)
    class_accuracy = _mean_by_class(correct, label, k)
    gamma = np.full(k, np.inf)
    np.minimum.at(gamma, label, margin)
    return Evaluation(
        accuracy=float(correct.mean()),
        class_margin=float(nearest.angle.min()),
        class_margin_maximum=maximum.angle,
        maximum_is_exact=maximum.exact,
        sample_margin=float(margin.astype(np.float64).mean()),
        sample_margin_ceiling=sample_margin_ceiling(k, d, nonnegative=nonnegative),
        gamma_min=float(margin.min()),
        smallest_norm=float(norms.min()),
        largest_norm=float(norms.max()),
        arrays=samples
        | {
            "class_accuracy": class_accuracy,
            "class_gamma": np.where(np.isfinite(gamma), gamma, np.nan),
            "class_sample_margin": _mean_by_class(margin, label, k),
            "nearest_class": nearest.neighbor.cpu().numpy(),
            "nearest_angle": nearest.angle.cpu().numpy(),
        },
        more=_of_imbalanced(samples, class_accuracy, correct) if "class_count" in samples else {},
    )


def _of_imbalanced(
    samples: dict[str, np.ndarray], class_accuracy: np.ndarray, correct: np.ndarray
) -> dict[str, float]:
    """Further metrics for imbalanced training sets."""
    ece = expected_calibration_error(samples["confidence"], correct > 0)
    return accuracy_by_count(class_accuracy, samples["class_count"].tolist()) | {"ece": ece}


def _mean_by_class(values: np.ndarray, label: np.ndarray, k: int) -> np.ndarray:
    """Mean of `values` over the samples of each class; NaN for classes without samples."""
    counts = np.bincount(label, minlength=k)
    sums = np.bincount(label, weights=values, minlength=k)
    return np.divide(sums, counts, out=np.full(k, np.nan), where=counts > 0)
