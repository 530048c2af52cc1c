"""Accuracy and margins of a classifier on images it has not learned from, with what they could be at most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tammes.data import Batches
from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.margins import nearest_prototypes, sample_margin_ceiling, sample_margins
from tammes.models import flip_average
from tammes.training.classifier import Classifier
from tammes.training.distributed import ALONE, World


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
        arrays: per sample `label`, `prediction`, `sample_margin`; per class `class_accuracy`,
            `class_gamma` (its smallest sample margin), `class_sample_margin` (its mean),
            `nearest_class`, `nearest_angle`. Classes without test samples have NaN.
    """

    accuracy: float
    class_margin: float
    class_margin_maximum: float
    maximum_is_exact: bool
    sample_margin: float
    sample_margin_ceiling: float
    gamma_min: float
    arrays: dict[str, np.ndarray]

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


@torch.no_grad()
def evaluate(
    classifier: Classifier, batches: Batches, *, flip: bool = False, world: World = ALONE
) -> Evaluation:
    """One pass of `classifier`, switched to evaluation and back, over `batches`, which ranks share.

    Args:
        classifier: with all prototypes on every rank.
        batches: in order, not augmented.
        flip: take the mean embedding of each image and its mirror image.
        world: the processes that share the work.
    """
    was_training = classifier.training
    classifier.eval()
    try:
        parts = [
            _measure(classifier, images, labels, indices, flip)
            for images, labels, indices in batches.epoch(0, rank=world.rank, world_size=world.size)
            if len(labels)
        ]
    finally:
        classifier.train(was_training)
    gathered = [part for parts in world.gather(parts) for part in parts]
    indices, *columns = (np.concatenate(column) for column in zip(*gathered, strict=True))
    order = np.argsort(indices)
    label, prediction, margin = (column[order] for column in columns)
    return _summarise(classifier, label, prediction, margin)


def _measure(
    classifier: Classifier, images: Tensor, labels: Tensor, indices: Tensor, flip: bool
) -> tuple[np.ndarray, ...]:
    """Indices, labels, predictions and sample margins of one batch."""
    backbone, head = classifier.backbone, classifier.head
    embeddings = flip_average(backbone, images) if flip else backbone(images)
    margins = sample_margins(embeddings, head.weight, labels)
    found = (indices, labels, head.predict(embeddings), margins)
    return tuple(column.cpu().numpy() for column in found)


def _summarise(
    classifier: Classifier, label: np.ndarray, prediction: np.ndarray, margin: np.ndarray
) -> Evaluation:
    head = classifier.head
    k, d = head.num_classes, head.in_features
    nearest = nearest_prototypes(head.weight)
    maximum = largest_class_margin(k, d)
    correct = (label == prediction).astype(np.float64)
    gamma = np.full(k, np.inf)
    np.minimum.at(gamma, label, margin)
    return Evaluation(
        accuracy=float(correct.mean()),
        class_margin=float(nearest.angle.min()),
        class_margin_maximum=maximum.angle,
        maximum_is_exact=maximum.exact,
        sample_margin=float(margin.astype(np.float64).mean()),
        sample_margin_ceiling=sample_margin_ceiling(k, d, nonnegative=classifier.backbone.nonnegative),
        gamma_min=float(margin.min()),
        arrays={
            "label": label,
            "prediction": prediction,
            "sample_margin": margin,
            "class_accuracy": _mean_by_class(correct, label, k),
            "class_gamma": np.where(np.isfinite(gamma), gamma, np.nan),
            "class_sample_margin": _mean_by_class(margin, label, k),
            "nearest_class": nearest.neighbour.cpu().numpy(),
            "nearest_angle": nearest.angle.cpu().numpy(),
        },
    )


def _mean_by_class(values: np.ndarray, label: np.ndarray, k: int) -> np.ndarray:
    """Mean of `values` over the samples of each class, NaN where there is none."""
    counts = np.bincount(label, minlength=k)
    sums = np.bincount(label, weights=values, minlength=k)
    return np.divide(sums, counts, out=np.full(k, np.nan), where=counts > 0)
