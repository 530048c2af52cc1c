import numpy as np
import pytest

from tammes.metrics import _example_samples as module
from tammes.metrics._example_samples import confused_pairs, example_samples


@pytest.fixture
def arrays():
    """Six samples of class 0, four of class 1, one of class 2; none of class 3."""
    return {
        "label": np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2]),
        "prediction": np.array([0, 0, 0, 1, 1, 2, 1, 1, 0, 1, 2]),
        "sample_margin": np.array([0.9, 0.8, 0.7, -0.1, -0.5, -0.3, 0.2, 0.1, -0.4, 0.3, 0.5]),
        "similarity": np.array([0.95, 0.9, 0.85, 0.4, 0.3, 0.1, 0.5, 0.6, 0.2, 0.7, 1.0]),
        "class_accuracy": np.array([0.5, 0.75, 1.0, np.nan]),
    }


def test_mistakes_come_with_the_smallest_margin_first(arrays):
    assert example_samples(arrays).mistakes == [4, 8, 5, 3]


def test_confused_pairs_come_most_frequent_first_with_their_worst_samples(arrays):
    assert confused_pairs(arrays["label"], arrays["prediction"])[0] == ((0, 1), 2)
    assert example_samples(arrays).confused == {(0, 1): [4, 3], (0, 2): [5], (1, 0): [8]}


def test_typical_samples_are_closest_to_their_prototype_and_odd_ones_farthest(arrays):
    found = example_samples(arrays)
    assert found.typical == {0: [0, 1, 2], 1: [9, 7]}  # never more than half of a class
    assert found.odd == {0: [5, 4, 3], 1: [8, 6]}  # a single sample, as in class 2, is neither


def test_each_sample_is_ranked_once_and_mistakes_lead(arrays):
    ranked = example_samples(arrays).ranked()
    assert ranked[:4] == [4, 8, 5, 3]
    assert sorted(ranked) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_of_many_classes_the_worst_have_examples(arrays, monkeypatch):
    monkeypatch.setattr(module, "CLASSES", 1)
    assert list(example_samples(arrays).typical) == [0]


def test_without_mistakes_there_are_typical_samples_all_the_same(arrays):
    found = example_samples(arrays | {"prediction": arrays["label"]})
    assert found.mistakes == []
    assert found.confused == {}
    assert found.typical[0] == [0, 1, 2]
