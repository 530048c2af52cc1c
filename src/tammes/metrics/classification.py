"""Accuracy and margins of a classifier, with what they could be at most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.margins import nearest_prototypes, sample_margin_ceiling
from tammes.geometry.sphere import normalize
from tammes.metrics.by_count import accuracy_by_count
from tammes.metrics.calibration import expected_calibration_error
from tammes.types import Embeddings, Labels, PerSample, Prototypes


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """What one pass over the test images shows; margins of samples are differences of cosines.

    Attributes:
        accuracy: share of samples whose own class has the largest logit.
        class_margin: smallest angle between two prototypes, in radians.
        class_margin_maximum: the largest there can be, or a bound of it unless `maximum_is_exact`.
        sample_margin: mean over samples, m_samp of the paper.
        sample_margin_ceiling: what it cannot exceed on balanced data, lower for non-negative features.
        gamma_min: the smallest sample margin.
        smallest_norm, largest_norm: of the prototypes.
        arrays: per sample `label`, `prediction`, `sample_margin`, `similarity` (to the own prototype); of
            some samples, `shown`, the unit `embedding`; per class `class_accuracy`, `class_gamma` (its
            smallest sample margin), `class_sample_margin` (its mean), `nearest_class`, `nearest_angle`.
            Classes without test samples have NaN. Where the training classes are skewed also per sample
            `confidence` and per class `class_count`.
        more: further numbers by name. Where the training classes are skewed: `many`, `medium` and `few`
            (accuracy by training images), `mean_class_accuracy`, and `ece` (calibration).
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
        """The name of the number by which a run is judged."""
        return "accuracy"

    @property
    def score(self) -> float:
        """That number."""
        return self.accuracy

    def numbers(self) -> dict[str, Any]:
        """For records and tables: no arrays, angles in degrees."""
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
        """The numbers of every class, under its name; None where it has no test samples."""
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


def own_similarities(embeddings: Embeddings, weight: Prototypes, labels: Labels) -> PerSample:
    """Cosine of each sample with the prototype of its own class."""
    return (normalize(embeddings) * normalize(weight[labels])).sum(-1)


def summarise(weight: Prototypes, samples: dict[str, np.ndarray], *, nonnegative: bool) -> Evaluation:
    """The evaluation that the arrays of `samples` amount to.

    Args:
        weight: the prototypes.
        samples: `label`, `prediction` and `sample_margin`; for skewed classes `confidence` and, for each
            class, `class_count`; and whatever else is to be kept.
        nonnegative: whether no entry of an embedding is ever below zero.
    """
    label, margin = samples["label"], samples["sample_margin"]
    k, d = weight.shape
    nearest = nearest_prototypes(weight)
    maximum, norms = largest_class_margin(k, d), weight.detach().norm(dim=1)
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
            "nearest_class": nearest.neighbour.cpu().numpy(),
            "nearest_angle": nearest.angle.cpu().numpy(),
        },
        more=_of_skewed(samples, class_accuracy, correct) if "class_count" in samples else {},
    )


def _of_skewed(
    samples: dict[str, np.ndarray], class_accuracy: np.ndarray, correct: np.ndarray
) -> dict[str, float]:
    """The numbers that matter where training classes differ in size."""
    ece = expected_calibration_error(samples["confidence"], correct > 0)
    return accuracy_by_count(class_accuracy, samples["class_count"].tolist()) | {"ece": ece}


def _mean_by_class(values: np.ndarray, label: np.ndarray, k: int) -> np.ndarray:
    """Mean of `values` over the samples of each class, NaN where there is none."""
    counts = np.bincount(label, minlength=k)
    sums = np.bincount(label, weights=values, minlength=k)
    return np.divide(sums, counts, out=np.full(k, np.nan), where=counts > 0)


SHOWN = 1000
"""So many samples, at the most, keep their embeddings: enough for a map."""


def some_samples(n: int) -> np.ndarray:
    """The indices of at most `SHOWN` of n samples, ascending; the same ones each time."""
    return np.sort(np.random.default_rng(0).permutation(n)[:SHOWN])
