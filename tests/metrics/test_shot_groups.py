import numpy as np
import pytest

from tammes.metrics.shot_groups import accuracy_by_count


def test_thresholds_are_those_of_imagenet_lt():
    """More than 100, 20 to 100, fewer than 20."""
    counts = [101, 100, 20, 19]
    for place, name in enumerate(("many", "medium", "medium", "few")):
        accuracy = np.zeros(4)
        accuracy[place] = 1.0
        found = accuracy_by_count(accuracy, counts)
        assert found[name] == (0.5 if name == "medium" else 1.0)
        assert found["mean_class_accuracy"] == 0.25
        assert sum(value > 0 for value in found.values()) == 2


def test_groups_without_classes_and_classes_without_images_are_left_out():
    assert accuracy_by_count(np.array([0.5, np.nan, 1.0]), [50, 70, 30]) == {
        "medium": 0.75,
        "mean_class_accuracy": 0.75,
    }


def test_counts_that_do_not_match_the_classes_are_refused():
    with pytest.raises(ValueError, match="each of 3 classes, got 2"):
        accuracy_by_count(np.ones(3), [5, 5])
