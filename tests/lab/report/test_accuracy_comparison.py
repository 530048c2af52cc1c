"""Intervals and differences of accuracies, against scipy's."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binomtest

from tammes.lab.report import inspect
from tammes.lab.report.accuracy_comparison import accuracy_interval, difference, sign_test, wilson_interval
from tammes.lab.report.contents import page


@pytest.mark.parametrize(("correct", "n"), [(0, 5), (5, 5), (354, 359), (1, 2), (40, 100), (9_876, 10_000)])
def test_the_interval_is_wilsons(correct, n):
    expected = binomtest(correct, n).proportion_ci(0.95, method="wilson")
    assert wilson_interval(correct, n) == pytest.approx((expected.low, expected.high), abs=1e-6)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (3, 1), (2, 2), (30, 12), (700, 600)])
def test_the_sign_test_is_the_exact_binomial_one(gained, lost):
    n = gained + lost
    assert sign_test(gained, lost) == pytest.approx(binomtest(gained, n).pvalue if n else 1.0)


def model(name: str, wrong: list[int], n: int = 100):
    """A model of two classes that misclassifies these of n samples."""
    labels = np.arange(n) % 2
    seen = labels.copy()
    seen[wrong] = 1 - seen[wrong]
    return dataclasses.replace(inspect(np.eye(2)[seen], labels, np.eye(2), name=name), data="coins")


@pytest.mark.usefixtures("flat")
def test_two_images_apart_is_no_difference_and_twenty_are():
    best, close, far = model("best", [1]), model("close", [5, 6, 7]), model("far", list(range(2, 23)))
    gap = difference(best, close)
    assert (gap.images, gap.samples, gap.significant) == (2, 100, False)
    assert gap.p_value == pytest.approx(binomtest(1, 4).pvalue)  # 3 images gained, 1 lost
    gap = difference(best, far)
    assert (gap.images, gap.significant) == (20, True)
    lead = page([best, close, far], "three").lead
    assert "Highest accuracy: best (99.00 %); no difference to “close”, 2 of 100 images behind." in lead
    assert "far" not in lead.split("Largest")[0]
    assert "the best, best (99.00 %), is 2 of 100 images ahead." in page([close, best], "two").lead


def test_models_on_other_samples_are_not_compared():
    best = model("best", [1])
    assert difference(best, dataclasses.replace(model("other", [1, 2]), data="dice")) is None
    assert difference(best, model("shorter", [1], n=90)) is None


def test_a_model_without_stored_samples_has_no_interval():
    assert accuracy_interval(dataclasses.replace(model("a", []), arrays={})) is None
