"""Accuracy of classes with many, medium and few training images."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

MANY = 100
FEW = 20

IMBALANCED = 3.0
"""Minimum ratio of the largest to the smallest class for a data set to count as imbalanced."""


def imbalanced(counts: Sequence[int]) -> bool:
    """Whether the largest class has at least three times as many images as the smallest.

    >>> imbalanced([30, 20, 10]), imbalanced([29, 20, 10])
    (True, False)
    """
    return max(counts) >= IMBALANCED * min(counts)


def accuracy_by_count(
    class_accuracy: Float[np.ndarray, " k"], counts: Sequence[int], *, many: int = MANY, few: int = FEW
) -> dict[str, float]:
    """Mean accuracy of the classes with more than `many`, fewer than `few`, and in-between training images.

    The usual split of ImageNet-LT (Liu et al. 2019). Empty groups, and classes without test images (NaN), are
    omitted; `mean_class_accuracy` is the mean over all classes.

    >>> accuracy_by_count(np.array([1.0, 0.5, 0.5, 0.0]), [500, 101, 100, 7])
    {'many': 0.75, 'medium': 0.5, 'few': 0.0, 'mean_class_accuracy': 0.5}
    """
    if len(class_accuracy) != len(counts):
        raise ValueError(
            f"counts must have one entry for each of {len(class_accuracy)} classes, got {len(counts)}."
        )
    n, seen = np.asarray(counts), ~np.isnan(class_accuracy)
    groups = {
        "many": n > many,
        "medium": (n <= many) & (n >= few),
        "few": n < few,
        "mean_class_accuracy": np.ones(len(n), dtype=bool),
    }
    means = {name: class_accuracy[group & seen] for name, group in groups.items()}
    return {name: float(values.mean()) for name, values in means.items() if len(values)}
