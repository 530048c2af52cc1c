"""The section on class sizes: only where they are imbalanced, with the numbers of the run."""

import numpy as np
import pytest

from tammes.lab.report import ModelResults
from tammes.lab.report.class_sizes import class_sizes

COUNTS = [40, 300, 5]
ACCURACY = [0.5, 0.9, np.nan]


@pytest.fixture
def model() -> ModelResults:
    numbers = {"few": 0.25, "medium": 0.5, "many": 0.9, "mean_class_accuracy": 0.7, "ece": 0.1234}
    arrays = {"class_count": np.array(COUNTS), "class_accuracy": np.array(ACCURACY)}
    classes = ("<b>ant</b>", "bee", "cow")
    return ModelResults(name="a", data="made", classes=classes, dimensions=4, numbers=numbers, arrays=arrays)


def test_bars_follow_the_counts_and_points_the_accuracies(model):
    (section,) = class_sizes(model)
    assert "60 to 1" in section.text
    assert "12.34 %" in section.text
    body = section.body
    assert body.index("bee: 300 images") < body.index("ant") < body.index("cow: 5 images")
    assert body.count("<circle") == 2  # the third class has no test image
    assert "90.00" in body
    assert "<b>ant" not in body


def test_balanced_classes_have_no_such_section(model):
    arrays = {name: values for name, values in model.arrays.items() if name != "class_count"}
    assert class_sizes(ModelResults(**vars(model) | {"arrays": arrays})) == []
