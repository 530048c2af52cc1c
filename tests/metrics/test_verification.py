"""Verification against cases worked by hand, scikit-learn, and slow counts over all pairs."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from tammes.metrics.verification import (
    FARS,
    at_far,
    auc,
    best_threshold,
    bootstrap,
    equal_error_rate,
    folds_in_order,
    roc,
    verify,
)

# Best first: same, same, different, same, different, different.
HAND = np.array([0.9, 0.8, 0.5, 0.3, -0.2, -0.6]), np.array([True, True, False, True, False, False])


def drawn(n: int, *, ties: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores in [-1, 1], same pairs somewhat higher; with `ties`, of few distinct values."""
    random = np.random.default_rng(seed)
    same = random.random(n) < 0.3
    scores = np.clip(random.normal(0.3 * same - 0.1, 0.3), -1, 1)
    return (scores.round(1) if ties else scores), same


def test_the_curve_of_six_pairs_by_hand():
    curve = roc(*HAND)
    assert curve.threshold.tolist() == [math.inf, 0.9, 0.8, 0.5, 0.3, -0.2, -0.6]
    assert curve.tar.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3, 1, 1, 1])
    assert curve.far.tolist() == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 2 / 3, 1])
    assert auc(curve) == pytest.approx(8 / 9)  # of nine couples only (0.3, 0.5) stands the wrong way round
    assert equal_error_rate(curve) == pytest.approx(1 / 3)
    assert at_far(curve, 0.3) == pytest.approx((0.8, 0.0, 2 / 3))
    assert at_far(curve, 1 / 3) == pytest.approx((0.3, 1 / 3, 1.0))


@pytest.mark.parametrize("ties", [False, True])
def test_curve_and_area_are_those_of_scikit_learn(ties):
    scores, same = drawn(5000, ties=ties)
    far, tar, threshold = sklearn.roc_curve(same, scores, drop_intermediate=False)
    curve = roc(scores, same)
    assert np.abs(curve.far - far).max() <= 1e-9
    assert np.abs(curve.tar - tar).max() <= 1e-9
    assert (curve.threshold == threshold).all()
    assert auc(curve) == pytest.approx(sklearn.roc_auc_score(same, scores), abs=1e-9)
    for wanted in FARS:
        assert at_far(curve, wanted).tar == pytest.approx(tar[far <= wanted].max(), abs=1e-9)


def test_a_weighted_curve_is_that_of_repeated_pairs():
    scores, same = drawn(200, ties=True)
    times = np.random.default_rng(1).integers(0, 4, 200)
    weighted = roc(scores, same, times.astype(np.float64))
    repeated = roc(np.repeat(scores, times), np.repeat(same, times))
    assert auc(weighted) == pytest.approx(auc(repeated), abs=1e-12)
    assert equal_error_rate(weighted) == pytest.approx(equal_error_rate(repeated), abs=1e-12)
    assert at_far(weighted, 0.1).tar == pytest.approx(at_far(repeated, 0.1).tar, abs=1e-12)


def bisected_error_rate(far: np.ndarray, tar: np.ndarray) -> float:
    """Walk along the curve to where as many are falsely accepted as are falsely refused."""
    places = np.arange(len(far))
    low, high = 0.0, len(far) - 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if np.interp(middle, places, far) < 1 - np.interp(middle, places, tar):
            low = middle
        else:
            high = middle
    return float(np.interp(high, places, far))


@pytest.mark.parametrize("ties", [False, True])
def test_at_the_equal_error_rate_both_errors_are_equal(ties):
    for seed in range(10):
        scores, same = drawn(60, ties=ties, seed=seed)
        far, tar, _ = sklearn.roc_curve(same, scores, drop_intermediate=False)
        assert equal_error_rate(roc(scores, same)) == pytest.approx(bisected_error_rate(far, tar), abs=1e-9)


@pytest.mark.parametrize("ties", [False, True])
def test_no_other_threshold_judges_more_pairs_rightly(ties):
    for seed in range(10):
        scores, same = drawn(80, ties=ties, seed=seed)
        found = ((scores >= best_threshold(scores, same)) == same).sum()
        tried = [((scores >= t) == same).sum() for t in [*scores, math.inf, -math.inf]]
        assert found == max(tried)


def test_the_threshold_of_a_fold_comes_from_the_others():
    # On the second fold alone 0.45 would be perfect; the first says 0.75, which errs once there.
    scores = np.array([0.9, 0.8, 0.7, 0.1, 0.9, 0.5, 0.4, 0.1])
    same = np.array([True, True, False, False, True, True, False, False])
    fold = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    found = verify(scores, same, fold)
    assert found.correct.tolist() == [True, True, False, True, True, False, True, True]
    assert found.accuracy == 0.75
    assert found.accuracy_error == 0.0
    assert found.threshold == pytest.approx((0.45 + 0.75) / 2)


def test_accuracy_and_its_standard_error_by_hand():
    # Three folds of which the last has one pair in four on the wrong side of every threshold.
    one, two = [0.9, 0.8, 0.2, 0.1], [0.9, 0.1, 0.2, 0.15]
    same = np.array([True, True, False, False] * 3)
    found = verify(np.array(one + one + two), same, np.repeat([0, 1, 2], 4))
    shares = [1.0, 1.0, 0.75]
    mean = sum(shares) / 3
    deviation = math.sqrt(sum((share - mean) ** 2 for share in shares) / 2)
    assert found.accuracy == pytest.approx(mean)
    assert found.accuracy_error == pytest.approx(deviation / math.sqrt(3))


def test_folds_in_order_are_those_of_a_list_laid_out_as_lfws():
    blocks = np.tile([True] * 30 + [False] * 30, 10)
    assert (folds_in_order(blocks) == np.repeat(np.arange(10), 60)).all()
    halves = np.repeat([True, False], 50)
    assert (folds_in_order(halves) == np.tile(np.repeat(np.arange(10), 5), 2)).all()


def test_rates_that_the_pairs_cannot_show_are_left_out():
    scores, same = drawn(500, ties=False)
    different = (~same).sum()
    assert 100 < different < 1000
    assert list(verify(scores, same).tar) == [1e-2, 1e-1]


def slow_bootstrap(scores, same, people, draws, seed):
    """The area for each draw of people, by counting couples of pairs one by one."""
    names = sorted(set(people.ravel()))
    random = np.random.default_rng(seed)
    areas = []
    for _ in range(draws):
        drawn = [names[i] for i in random.integers(len(names), size=len(names))]
        times = [
            drawn.count(a) if s else drawn.count(a) * drawn.count(b)
            for (a, b), s in zip(people, same, strict=True)
        ]
        wins = total = 0.0
        for i in np.flatnonzero(same):
            for j in np.flatnonzero(~same):
                couples = times[i] * times[j]
                total += couples
                wins += couples * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
        areas.append(wins / total)
    return areas


def test_the_bootstrap_draws_people_not_pairs():
    random = np.random.default_rng(3)
    people = random.choice(list("abcdefghij"), (60, 2))
    people[::2, 1] = people[::2, 0]
    same = people[:, 0] == people[:, 1]
    scores = np.clip(random.normal(0.4 * same, 0.4), -1, 1).round(1)
    found = bootstrap(scores, same, people, resamples=50, level=0.8, seed=5)
    areas = slow_bootstrap(scores, same, people, 50, seed=5)
    assert found["auc"] == pytest.approx(np.quantile(areas, [0.1, 0.9]), abs=1e-9)
    assert found["accuracy"][0] < verify(scores, same).accuracy < found["accuracy"][1]


@pytest.mark.parametrize(
    ("scores", "same", "message"),
    [
        ([0.1, 0.2], [True, True], "needs same and different pairs, got 2 and 0"),
        ([0.1, math.nan], [True, False], "scores must be finite, got nan for pair 1"),
        ([0.1, 0.2, 0.3], [True, False], r"one entry per pair, got shapes \(3,\) and \(2,\)"),
    ],
)
@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_bad_pairs_are_named(scores, same, message, kind):
    with pytest.raises(ValueError, match=message):
        roc(kind(scores), kind(same))


@pytest.mark.parametrize("kind", [torch.tensor, np.ndarray.tolist])
@pytest.mark.parametrize("label", [bool, np.int64, np.float32])
def test_tensors_lists_and_numbers_for_labels_are_as_good_as_arrays(kind, label):
    scores, same = drawn(200, ties=True)
    people = np.arange(400).reshape(200, 2)
    ours = kind(scores), kind(same.astype(label))
    assert [one.tolist() for one in roc(*ours)] == [one.tolist() for one in roc(scores, same)]
    assert best_threshold(*ours) == best_threshold(scores, same)
    assert folds_in_order(ours[1]).tolist() == folds_in_order(same).tolist()
    assert verify(*ours).numbers() == verify(scores, same).numbers()
    expected = bootstrap(scores, same, people, resamples=3)
    assert bootstrap(*ours, kind(people), resamples=3) == expected


def test_labels_other_than_0_and_1_are_refused():
    with pytest.raises(ValueError, match="same must be true or false, got 2 for pair 1"):
        roc(np.array([0.1, 0.2, 0.3]), np.array([0, 2, 1]))


def test_a_share_and_enough_pairs_are_asked_for():
    with pytest.raises(ValueError, match=r"far must lie in \[0, 1\], got 2"):
        at_far(roc(*HAND), 2)
    with pytest.raises(ValueError, match="got 2 pairs in 1 folds"):
        verify(np.array([0.1, 0.2]), np.array([True, False]), np.array([0, 0]))
