"""Confidence intervals of accuracies, and significance of differences on the same samples."""

import math
from typing import NamedTuple

import numpy as np

from tammes.lab.report.model_results import ModelResults

Z95 = 1.959964
"""The 97.5 % quantile of the standard normal distribution."""

SIGNIFICANT = 0.05


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


class Difference(NamedTuple):
    """By how many of `samples` one model is ahead of another, and the p-value of that lead."""

    images: int
    samples: int
    p_value: float

    @property
    def significant(self) -> bool:
        return self.p_value < SIGNIFICANT


def wilson_interval(correct: int, samples: int) -> Interval:
    """Wilson's score interval for a proportion, which stays within [0, 1] and is accurate near its ends.

    >>> [round(end, 4) for end in wilson_interval(354, 359)]
    [0.9678, 0.994]
    """
    share, spread = correct / samples, Z95**2 / samples
    middle = share + spread / 2
    half = Z95 * math.sqrt(share * (1 - share) / samples + spread / (4 * samples))
    low, high = ((middle + sign * half) / (1 + spread) for sign in (-1, 1))
    return Interval(max(0.0, low), min(1.0, high))


def accuracy_interval(model: ModelResults) -> Interval | None:
    """The interval of a model's accuracy; None if its samples are not stored."""
    if "prediction" not in model.arrays:
        return None
    return wilson_interval(int(model.correct.sum()), model.samples)


def difference(best: ModelResults, other: ModelResults) -> Difference | None:
    """Compare two models on the same samples by McNemar's exact test; None if the samples differ."""
    if best.data != other.data or not all("prediction" in m.arrays for m in (best, other)):
        return None
    if not np.array_equal(best.arrays["label"], other.arrays["label"]):
        return None
    gained = int((best.correct & ~other.correct).sum())
    lost = int((other.correct & ~best.correct).sum())
    return Difference(gained - lost, best.samples, sign_test(gained, lost))


def sign_test(gained: int, lost: int) -> float:
    """Two-sided probability of a split at least this uneven if either outcome were equally likely.

    >>> sign_test(3, 1)
    0.625
    """
    n, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(n, i) for i in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**n))
