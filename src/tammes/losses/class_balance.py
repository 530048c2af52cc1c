"""Weights of classes by their counts: the class-balanced loss (Cui et al. 2019)."""

from collections.abc import Sequence

from tammes import checks


def effective_number_weights(counts: Sequence[float], *, beta: float = 0.9999) -> tuple[float, ...]:
    r"""Weights inverse to the effective number of samples :math:`(1 - \beta^{n_j}) / (1 - \beta)`, of mean 1.

    At beta = 0 all are 1; as beta tends to 1 they tend to inverse counts. For `class_weight` of a head; from
    a late epoch on they are deferred re-weighting (DRW, Cao et al. 2019).

    >>> [round(w, 3) for w in effective_number_weights([1000, 10], beta=0.99)]
    [0.175, 1.825]

    Reference: Cui, Jia, Lin, Song, Belongie, "Class-balanced loss based on effective number of
    samples", 2019.
    """
    beta = checks.within("beta", beta, 0.0, 1.0)
    if beta == 1:
        raise ValueError("beta must be below 1, where no sample would count. Use 0.9999.")
    numbers = [1 - beta ** checks.positive(f"The count of class {j}", float(n)) for j, n in enumerate(counts)]
    mean = sum(1 / number for number in numbers) / len(numbers)
    return tuple(1 / number / mean for number in numbers)
