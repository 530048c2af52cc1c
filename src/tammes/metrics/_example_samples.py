"""Samples worth a look: the worst mistakes, confused pairs, typical and atypical samples of each class."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

MISTAKES = 24
"""Maximum number of worst mistakes."""
PAIRS, PER_PAIR = 40, 6
"""Maximum number of confused pairs of classes, and of examples for each."""
CLASSES, PER_CLASS = 40, 4
"""Maximum number of classes with examples, and of typical and of atypical examples for each."""

Pair = tuple[int, int]


class ExampleSamples(NamedTuple):
    """Indices of samples.

    Attributes:
        mistakes: Misclassified samples, smallest margin first.
        confused: Samples of each pair (label, prediction), smallest margin first; most frequent pair first.
        typical: For some classes, the samples with the largest cosine to their prototype.
        odd: For the same classes, the samples with the smallest cosine, misclassified or not.
    """

    mistakes: list[int]
    confused: dict[Pair, list[int]]
    typical: dict[int, list[int]]
    odd: dict[int, list[int]]

    def ranked(self) -> list[int]:
        """All samples without duplicates, most important first."""
        groups = [self.mistakes]
        groups += [
            [some[place] for some in kind.values() if len(some) > place]
            for place in range(max(PER_PAIR, PER_CLASS))
            for kind in (self.confused, self.typical, self.odd)
        ]
        return list(dict.fromkeys(sample for group in groups for sample in group))


def confused_pairs(label: np.ndarray, prediction: np.ndarray) -> list[tuple[Pair, int]]:
    """Pairs (label, prediction) of misclassified samples with their counts, most frequent first."""
    wrong = label != prediction
    return Counter(zip(label[wrong].tolist(), prediction[wrong].tolist(), strict=True)).most_common()


def example_samples(arrays: Mapping[str, np.ndarray]) -> ExampleSamples:
    """Choose examples from the per-sample arrays of an evaluation.

    If there are many classes, only those with the lowest accuracy get typical and odd examples.

    >>> arrays = {"label": np.array([0, 0, 1, 1]), "prediction": np.array([0, 1, 1, 1])}
    >>> arrays["sample_margin"] = np.array([0.5, -0.2, 0.3, 0.9])
    >>> arrays["similarity"] = np.array([0.9, 0.3, 0.4, 1.0])
    >>> found = example_samples(arrays | {"class_accuracy": np.array([0.5, 1.0])})
    >>> found.mistakes, found.confused
    ([1], {(0, 1): [1]})
    >>> found.typical, found.odd
    ({0: [0], 1: [3]}, {0: [1], 1: [2]})
    """
    label, prediction, margin = (arrays[name] for name in ("label", "prediction", "sample_margin"))
    by_margin = np.argsort(margin, kind="stable")
    wrong = by_margin[(label != prediction)[by_margin]]
    confused = {
        (a, b): wrong[(label[wrong] == a) & (prediction[wrong] == b)][:PER_PAIR].tolist()
        for (a, b), _ in confused_pairs(label, prediction)[:PAIRS]
    }
    typical: dict[int, list[int]] = {}
    odd: dict[int, list[int]] = {}
    by_similarity = np.argsort(-arrays["similarity"], kind="stable")
    for j in _worst_classes(arrays["class_accuracy"]):
        own = by_similarity[label[by_similarity] == j].tolist()
        each = min(PER_CLASS, len(own) // 2)
        if each:
            typical[j], odd[j] = own[:each], own[: -each - 1 : -1]
    return ExampleSamples(wrong[:MISTAKES].tolist(), confused, typical, odd)


def _worst_classes(accuracy: np.ndarray) -> list[int]:
    """Up to `CLASSES` classes that have samples, those with the lowest accuracy, in label order."""
    order = np.argsort(accuracy, kind="stable")
    return sorted(order[np.isfinite(accuracy[order])][:CLASSES].tolist())


SHOWN = 1000
"""Maximum number of samples whose embeddings are kept, for a map."""


def some_samples(n: int) -> np.ndarray:
    """A fixed random subset of at most `SHOWN` of n samples, as ascending indices."""
    return np.sort(np.random.default_rng(0).permutation(n)[:SHOWN])
