"""The page on pairs of faces: a curve over powers of ten, two histograms, the worst mistakes as pictures."""

import re

import numpy as np
import pytest

from tammes.lab.report.charts import log_curve
from tammes.lab.report.face_pairs import face_pairs
from tammes.lab.report.model_results import ModelResults


def model(**lists) -> ModelResults:
    return ModelResults(
        name="run", data="faces", classes=("a", "b"), dimensions=2, numbers={}, arrays={}, verified=lists
    )


def scored(mistakes: int = 2) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    same = np.arange(400) < 200
    return {
        "scores": np.clip(random.normal(0.4 * same, 0.2), -1, 1).astype(np.float32),
        "same": same,
        "threshold": np.array(0.2),
        "mistake_pictures": random.integers(0, 255, (mistakes, 2, 8, 8, 3), dtype=np.uint8),
        "mistake_names": np.array([["A<b>/1.jpg", "C/2.jpg"]] * mistakes).reshape(-1, 2),
        "mistake_scores": np.full(mistakes, -0.25, np.float32),
        "mistake_same": np.arange(mistakes) % 2 == 1,
    }


def test_a_run_that_was_not_verified_has_no_such_section():
    assert face_pairs(model()) == []


def test_every_list_has_a_section_with_curve_histogram_and_mistakes():
    first, second = face_pairs(model(lfw=scored(), mine=scored(mistakes=0)))
    assert (first.title, second.title) == ("Face verification: lfw", "Face verification: mine")
    assert "200 pairs of one person and 200 pairs of two people" in first.text
    assert first.body.count("<img") == 4
    assert "Two people, taken for one" in first.body
    assert "One person, taken for two" in first.body
    assert "A&lt;b&gt;/1.jpg" in first.body
    assert "cosine −0.250" in first.body
    assert "<img" not in second.body
    for section in (first, second):
        assert "threshold 0.200" in section.body
        assert "ROC curve" in section.body


def test_the_curve_lies_where_its_rates_say():
    drawn = log_curve("roc", [0.001, 0.01, 1.0], [0.25, 0.5, 1.0], labels=("far", "tar"))
    (points,) = re.findall(r'points="([^"]+)"', drawn)
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, pair.split(","))) for pair in points.split())
    assert (x1 - x0) / (x2 - x0) == pytest.approx(1 / 3, abs=0.01)  # one decade of three
    assert (y0 - y1) / (y0 - y2) == pytest.approx(1 / 3, abs=0.01)
    assert all(f">{mark}<" in drawn for mark in ("0.001", "0.01", "0.1", "1"))
