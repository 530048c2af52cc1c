"""Calibration: whether a classifier's confidence matches its accuracy."""

import numpy as np
from jaxtyping import Bool, Float

from tammes._common.checks import at_least


def expected_calibration_error(
    confidence: Float[np.ndarray, " n"], correct: Bool[np.ndarray, " m"], bins: int = 15
) -> float:
    r"""ECE: the gap between confidence and accuracy, averaged over bins of equal width.

    .. math::
        \sum_b \frac{n_b}{n} \, |\mathrm{acc}_b - \mathrm{conf}_b|

    Args:
        confidence: Largest class probability of each sample, in [0, 1].
        correct: Whether each prediction is correct.
        bins: Number of confidence bins; each includes its upper edge.

    >>> expected_calibration_error(np.array([0.75, 0.75, 0.75, 0.75]), np.array([True, False, True, False]))
    0.25

    Reference: Guo, Pleiss, Sun, Weinberger, "On calibration of modern neural networks", 2017.
    """
    bins = at_least("bins", bins, 1)
    if len(confidence) != len(correct) or not len(correct):
        raise ValueError(
            f"confidence and correct must have one entry per sample, got {len(confidence)} and "
            f"{len(correct)}."
        )
    if not ((confidence >= 0) & (confidence <= 1)).all():
        raise ValueError("confidence must lie in [0, 1]. Pass probabilities, not logits.")
    place = np.clip(np.ceil(confidence.astype(np.float64) * bins).astype(int) - 1, 0, bins - 1)
    gap = np.bincount(place, weights=correct - confidence.astype(np.float64), minlength=bins)
    return float(np.abs(gap).sum() / len(correct))
