"""Verification metrics of scored pairs: ROC, TAR at FAR, AUC, EER and cross-validated accuracy.

A pair is accepted if its score is at least the threshold. FAR is the fraction of different pairs that are
accepted, TAR the fraction of same pairs. Scores and labels may be arrays, tensors on the CPU, or lists.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import ArrayLike

from tammes._common import checks

PairScores = Float[np.ndarray, " n"]
Same = Bool[np.ndarray, " n"]

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""False accept rates at which to report true accept rates, as for IJB-B and IJB-C."""

FOLDS = 10


class Roc(NamedTuple):
    """FAR and TAR at descending thresholds: infinity, then each distinct score."""

    far: Float[np.ndarray, " m"]
    tar: Float[np.ndarray, " m"]
    threshold: Float[np.ndarray, " m"]


def roc(scores: ArrayLike, same: ArrayLike, weight: Float[np.ndarray, " n"] | None = None) -> Roc:
    """The receiver operating characteristic of scored pairs; equal scores share one threshold.

    Args:
        scores: Similarity scores, larger for more similar pairs.
        same: Whether each pair shows the same person.
        weight: Weight of each pair, by default 1.

    >>> curve = roc(np.array([0.9, 0.8, 0.8, 0.1]), np.array([True, True, False, False]))
    >>> curve.far.tolist(), curve.tar.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    scores, same = _checked_pairs(scores, same)
    order = np.argsort(scores, kind="stable")[::-1]
    ranked, hit = scores[order], same[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    share = np.ones(1, np.int64) if weight is None else weight[order]
    tar, far = (np.cumsum(kind * share)[last] for kind in (hit, ~hit))
    start = np.zeros(1)
    return Roc(
        np.concatenate([start, far / far[-1]]),
        np.concatenate([start, tar / tar[-1]]),
        np.concatenate([[np.inf], ranked[last]]),
    )


def auc(curve: Roc) -> float:
    """Area under the curve: the probability that a same pair outscores a different one, ties counting half.

    >>> auc(roc(np.array([0.9, 0.8, 0.8, 0.1]), np.array([True, True, False, False])))
    0.875
    """
    return float((np.diff(curve.far) * (curve.tar[1:] + curve.tar[:-1]) / 2).sum())


class Operating(NamedTuple):
    """An operating point: a threshold with its FAR and TAR."""

    threshold: float
    far: float
    tar: float


def at_far(curve: Roc, far: float) -> Operating:
    """The operating point with the lowest threshold, and so the largest TAR, whose FAR is at most `far`.

    >>> at_far(roc(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False])), 0.1).tar
    0.5
    """
    checks.within("far", far, 0.0, 1.0, "It is a fraction of the different pairs.")
    place = np.searchsorted(curve.far, far, side="right") - 1
    return Operating(float(curve.threshold[place]), float(curve.far[place]), float(curve.tar[place]))


def equal_error_rate(curve: Roc) -> float:
    """The rate at which false accepts equal false rejects, interpolated linearly between points.

    >>> equal_error_rate(roc(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False])))
    0.5
    """
    gap = curve.far - (1 - curve.tar)
    right = int(np.argmax(gap >= 0))
    step = -gap[right - 1] / (gap[right] - gap[right - 1])
    return float(curve.far[right - 1] + step * (curve.far[right] - curve.far[right - 1]))


def best_threshold(scores: ArrayLike, same: ArrayLike) -> float:
    """The most accurate threshold, halfway between two scores; the highest one on ties.

    >>> best_threshold(np.array([0.9, 0.7, 0.5, 0.1]), np.array([True, True, False, False]))
    0.6
    """
    scores, same = _checked_pairs(scores, same)
    curve = roc(scores, same)
    right = curve.tar * same.sum() + (1 - curve.far) * (~same).sum()
    # Counts summed in another order differ in their last digits.
    best = int(np.argmax(right >= right.max() - 0.5))
    between = curve.threshold[best : best + 2]
    return float(between.mean())


def folds_in_order(same: ArrayLike, folds: int = FOLDS) -> Int[np.ndarray, " n"]:
    """Fold index of each pair: same and different pairs are each cut into consecutive runs of equal size.

    Lists are sorted by person, so the pairs of a person stay in one fold. For lists with consecutive folds of
    equal composition, such as LFW's, CFP's and AgeDB's, these are the official folds.
    """
    same = _as_booleans(same)
    fold = np.empty(len(same), np.int64)
    for kind in (same, ~same):
        count = int(kind.sum())
        fold[kind] = np.arange(count) * folds // max(count, 1)
    return fold


@dataclass(frozen=True, eq=False, kw_only=True)
class Verification:
    """Verification metrics of scored pairs.

    Attributes:
        accuracy: Mean accuracy over folds, each with the best threshold of the other folds.
        accuracy_error: Standard error of the accuracy over folds.
        threshold: Mean of the folds' thresholds.
        auc: Area under the ROC curve.
        eer: Equal error rate.
        tar: True accept rate at each of `FARS` that amounts to at least one false accept.
        curve: The ROC curve.
        correct: Whether each pair was classified correctly.
        same, different: Number of same and of different pairs.
    """

    accuracy: float
    accuracy_error: float
    threshold: float
    auc: float
    eer: float
    tar: dict[float, float]
    curve: Roc
    correct: Bool[np.ndarray, " n"]
    same: int
    different: int

    def numbers(self) -> dict[str, float]:
        """All numbers, for records and tables.

        >>> scores, same = np.linspace(1, 0, 40), np.arange(40) < 20
        >>> verify(scores, same).numbers()["tar_at_1e-01"]
        1.0
        """
        named = {f"tar_at_{far:.0e}": tar for far, tar in self.tar.items()}
        return {
            "accuracy": self.accuracy,
            "accuracy_error": self.accuracy_error,
            "auc": self.auc,
            "eer": self.eer,
        } | named


def verify(scores: ArrayLike, same: ArrayLike, fold: ArrayLike | None = None) -> Verification:
    """Compute the verification metrics of scored pairs.

    Args:
        scores: Similarity scores, larger for more similar pairs.
        same: Whether each pair shows the same person.
        fold: Fold index of each pair; by default `folds_in_order`.
    """
    scores, same = _checked_pairs(scores, same)
    curve = roc(scores, same)
    fold = folds_in_order(same) if fold is None else np.asarray(fold)
    different = int((~same).sum())
    correct, thresholds = _judge(scores, same, fold)
    shares = np.array([correct[fold == one].mean() for one in np.unique(fold)])
    return Verification(
        accuracy=float(shares.mean()),
        accuracy_error=float(shares.std(ddof=1) / np.sqrt(len(shares))),
        threshold=float(np.mean(thresholds)),
        auc=auc(curve),
        eer=equal_error_rate(curve),
        tar={far: at_far(curve, far).tar for far in FARS if far * different >= 1},
        curve=curve,
        correct=correct,
        same=int(same.sum()),
        different=different,
    )


def _judge(scores: PairScores, same: Same, fold: Int[np.ndarray, " n"]) -> tuple[Same, list[float]]:
    """Whether each pair is correct under the best threshold of the other folds, and these thresholds."""
    numbers = np.unique(fold)
    correct, thresholds = np.empty(len(same), bool), []
    for number in numbers:
        held = fold == number
        if len(numbers) < 2 or same[~held].all() or not same[~held].any():
            raise ValueError(
                f"Choosing a threshold for a fold needs same and different pairs in the other folds, got "
                f"{len(same)} pairs in {len(numbers)} folds. Pass more pairs."
            )
        thresholds.append(best_threshold(scores[~held], same[~held]))
        correct[held] = (scores[held] >= thresholds[-1]) == same[held]
    return correct, thresholds


ConfidenceInterval = tuple[float, float]


def bootstrap(
    scores: ArrayLike,
    same: ArrayLike,
    people: ArrayLike,
    fold: ArrayLike | None = None,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, ConfidenceInterval]:
    """Bootstrap confidence intervals of the metrics of `verify`, resampling people.

    Pairs that share a person are not independent, but people are. If a person is drawn c times, its same
    pairs count c times, and a pair of two people counts the product of their draws (the vertex bootstrap).
    The thresholds for the accuracy are not resampled.

    Args:
        scores, same, fold: The pairs, as for `verify`.
        people: Identities of the two images of each pair.
        resamples: Number of bootstrap resamples.
        level: Confidence level of the central (percentile) intervals.
        seed: Random seed.
    """
    resamples = checks.at_least("resamples", resamples, 2)
    checks.within("level", level, 0.0, 1.0)
    scores, same = _checked_pairs(scores, same)
    whole = verify(scores, same, fold)
    order = np.argsort(scores, kind="stable")  # sort once: sorting sorted scores again is cheap
    scores, same, correct = scores[order], same[order], whole.correct[order]
    names, places = np.unique(np.asarray(people)[order], return_inverse=True)
    first, second = places.reshape(-1, 2).T
    random = np.random.default_rng(seed)
    draws: list[dict[str, float]] = []
    while len(draws) < resamples:
        drawn = np.bincount(random.integers(len(names), size=len(names)), minlength=len(names))
        weight = np.where(same, drawn[first], drawn[first] * drawn[second]).astype(np.float64)
        if weight[same].any() and weight[~same].any():
            draws.append(_weighted(scores, same, correct, weight, tuple(whole.tar)))
    ends = [(1 - level) / 2, (1 + level) / 2]
    return {
        name: (float(low), float(high))
        for name in draws[0]
        for low, high in [np.quantile([draw[name] for draw in draws], ends)]
    }


def _weighted(
    scores: PairScores, same: Same, correct: Same, weight: Float[np.ndarray, " n"], fars: tuple[float, ...]
) -> dict[str, float]:
    curve = roc(scores, same, weight)
    tar = {f"tar_at_{far:.0e}": at_far(curve, far).tar for far in fars}
    accuracy = float(np.average(correct, weights=weight))
    return {"accuracy": accuracy, "auc": auc(curve), "eer": equal_error_rate(curve)} | tar


def _checked_pairs(scores: ArrayLike, same: ArrayLike) -> tuple[Shaped[np.ndarray, " n"], Same]:
    scores, same = np.asarray(scores), _as_booleans(same)
    if scores.ndim != 1 or scores.shape != same.shape:
        raise ValueError(
            f"scores and same must be vectors with one entry per pair, got shapes {scores.shape} and "
            f"{same.shape}."
        )
    if not same.any() or same.all():
        raise ValueError(
            f"A ROC curve needs same and different pairs, got {int(same.sum())} and {int((~same).sum())}."
        )
    if not np.isfinite(scores).all():
        place = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise ValueError(f"scores must be finite, got {scores[place]} for pair {place}.")
    return scores, same


def _as_booleans(same: ArrayLike) -> Same:
    """`same` as booleans. Integers would go unnoticed: ~1 is -2."""
    values = np.asarray(same)
    if values.dtype == bool:
        return values
    odd = np.flatnonzero((values != 0) & (values != 1))
    if len(odd):
        raise ValueError(f"same must be true or false, got {values.flat[odd[0]]} for pair {odd[0]}.")
    return values.astype(bool)
