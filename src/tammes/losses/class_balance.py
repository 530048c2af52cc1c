"""Class weights from class counts, for class-balanced losses (Cui et al. 2019)."""

from collections.abc import Sequence

from tammes._common import checks


def effective_number_weights(counts: Sequence[float], *, beta: float = 0.9999) -> tuple[float, ...]:
    r"""Class weights inverse to the effective number of samples :math:`(1 - \beta^{n_j}) / (1 - \beta)`.

    Normalized to mean 1. At beta = 0 all weights are 1; as beta tends to 1 they become inversely proportional
    to the counts. Pass them as the head's `class_weight`; when applied only in the last epochs, this is
    deferred re-weighting (DRW, Cao et al. 2019).

    >>> [round(w, 3) for w in effective_number_weights([1000, 10], beta=0.99)]
    [0.175, 1.825]

    Reference: Cui, Jia, Lin, Song, Belongie, "Class-balanced loss based on effective number of
    samples", 2019.
    """
    beta = checks.within("beta", beta, 0.0, 1.0)
    if beta == 1:
        raise ValueError(
            "beta must be below 1, where all weights would be undefined. Use for example 0.9999."
        )
    numbers = [1 - beta ** checks.positive(f"The count of class {j}", float(n)) for j, n in enumerate(counts)]
    mean = sum(1 / number for number in numbers) / len(numbers)
    return tuple(1 / number / mean for number in numbers)


def dynamic_margins(
    counts: Sequence[float], low: float, high: float, *, power: float = 0.25
) -> tuple[float, ...]:
    r"""Margins from `low` for the most frequent class to `high` for the rarest, for any loss with a margin.

    .. math::
        m_j = low + (high - low) \frac{n_j^{-p} - n_{max}^{-p}}{n_{min}^{-p} - n_{max}^{-p}}

    All margins are `low` if all counts are equal. p = 1/4 grows like `ldam_margins`.

    >>> [round(m, 3) for m in dynamic_margins([10_000, 625, 16], 0.2, 0.5)]
    [0.2, 0.275, 0.5]

    Reference: Ha, Liu, Liu, Liu, "Google Landmark Recognition 2020 competition third place solution", 2020.
    """
    low, high = checks.within("low", low, 0.0, 100.0), checks.within("high", high, 0.0, 100.0)
    if low > high:
        raise ValueError(f"low must be at most high, got {low:g} and {high:g}.")
    checks.within("power", power, 0.0, 10.0)
    numbers = [checks.positive(f"The count of class {j}", float(n)) ** -power for j, n in enumerate(counts)]
    least, spread = min(numbers), (max(numbers) - min(numbers)) or 1.0
    return tuple(low + (high - low) * (number - least) / spread for number in numbers)
