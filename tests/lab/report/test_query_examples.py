import re

import numpy as np
import pytest

from tammes.lab.report import ModelResults
from tammes.lab.report.query_examples import query_examples
from tammes.lab.report.thumbnails import data_url

NOTHING = {"name": "run", "data": "people", "classes": ("a", "b"), "dimensions": 2, "numbers": {}}


@pytest.fixture
def model() -> ModelResults:
    """Five rankings of three answers, the last of which has only two."""
    rng = np.random.default_rng(0)
    arrays = {
        "average_precision": np.array([0.2, 1.0, 0.9, 0.5, 0.1]),
        "first_rank": np.array([5, 1, 1, 2, 10]),
        "example": np.array([1, 2, 3, 0, 4]),
        "example_picture": rng.integers(0, 256, (5, 4, 8, 4, 3), dtype=np.uint8),
        "example_right": np.array([[1, 1, 0], [1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, -1]], np.int8),
    }
    return ModelResults(**NOTHING, arrays=arrays)


def test_easy_and_hard_queries_are_shown_with_their_answers(model):
    easy, hard = query_examples(model)
    assert (easy.title, hard.title) == ("Easy queries", "Hard queries")
    captions = [re.findall("AP (.*?)<", section.body) for section in (easy, hard)]
    assert captions == [
        ["100 %, first: 1", "90 %, first: 1", "50 %, first: 2"],
        ["20 %, first: 5", "10 %, first: 10"],
    ]
    frames = re.findall('photo (right|wrong)"', easy.body)
    assert frames[3:6] == ["right", "wrong", "right"]
    assert len(re.findall('photo (right|wrong)"', hard.body)) == 3 + 2  # the last ranking is short
    assert data_url(model.arrays["example_picture"][0, 3]) in easy.body


def test_other_runs_have_no_rankings():
    assert query_examples(ModelResults(**NOTHING, arrays={})) == []
