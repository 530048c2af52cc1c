import numpy as np
import pytest

from tammes.report import Subject
from tammes.report import retrieval as module
from tammes.report.retrieval import lists


@pytest.fixture
def subject() -> Subject:
    """Five lists of three answers, the last of which has only two."""
    rng = np.random.default_rng(0)
    arrays = {
        "average_precision": np.array([0.2, 1.0, 0.9, 0.5, 0.1]),
        "first_rank": np.array([5, 1, 1, 2, 10]),
        "example": np.array([1, 2, 3, 0, 4]),
        "example_picture": rng.integers(0, 256, (5, 4, 8, 4, 3), dtype=np.uint8),
        "example_right": np.array([[1, 1, 0], [1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, -1]], np.int8),
    }
    return Subject(name="run", data="people", classes=("a", "b"), dimensions=2, numbers={}, arrays=arrays)


def test_easy_and_hard_queries_are_shown_with_their_answers(subject, monkeypatch):
    drawn = []
    monkeypatch.setattr(module, "draw_lists", lambda shown, *_: drawn.extend(shown))
    easy, hard = lists(subject)
    assert (easy.title, hard.title) == ("Easy queries", "Hard queries")
    assert [one.title.split("\n")[0] for one in drawn] == [
        "AP 100 %",
        "AP 90 %",
        "AP 50 %",
        "AP 20 %",
        "AP 10 %",
    ]
    assert [answer.right for answer in drawn[1].answers] == [True, False, True]
    assert len(drawn[4].answers) == 2
    assert np.array_equal(drawn[0].answers[2].picture, subject.arrays["example_picture"][0, 3])


def test_pictures_are_part_of_the_page(subject):
    assert all("data:image/jpeg;base64," in section.body_html for section in lists(subject))


def test_other_runs_have_no_lists(subject):
    assert lists(Subject(name="run", data="", classes=("a", "b"), dimensions=2, numbers={}, arrays={})) == []
