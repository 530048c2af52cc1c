import numpy as np
import pytest
import torch

from tammes.metrics import retrieval as module
from tammes.metrics.retrieval import JUNK, Shots, nearest, retrieval_metrics, retrieval_metrics_of_scores


def by_the_loop(scores, asked: Shots, held: Shots) -> list[tuple[float, int, float] | None]:
    """The usual loop: sort each ranking, drop what the protocol excludes, average the precisions."""
    found = []
    for q in range(len(scores)):
        order = np.argsort(-scores[q].numpy(), kind="stable")
        people, cameras = held.people.numpy()[order], held.cameras.numpy()[order]
        own = (people == int(asked.people[q])) & (cameras == int(asked.cameras[q]))
        right = (people == int(asked.people[q]))[~own & (people != JUNK)]
        places = np.flatnonzero(right) + 1
        if not len(places):
            found.append(None)
            continue
        precisions = [(i + 1) / place for i, place in enumerate(places)]
        found.append((float(np.mean(precisions)), int(places[0]), len(places) / int(places[-1])))
    return found


def random_case(seed: int, q: int = 23, g: int = 171, d: int = 5):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda low, high, n: torch.randint(low, high, (n,), generator=generator)  # noqa: E731
    asked = Shots(draw(0, 9, q), draw(0, 3, q))
    held = Shots(draw(-1, 9, g), draw(0, 3, g))
    points = torch.randn(q + g, d, generator=generator, dtype=torch.float64)
    return points[:q], points[q:], asked, held


def assert_agrees(found, expected) -> None:
    for q, one in enumerate(expected):
        average, first, penalty = one or (np.nan, 0, np.nan)
        np.testing.assert_allclose(found.average_precision[q], average, rtol=1e-12)
        assert found.first_rank[q] == first
        np.testing.assert_allclose(found.inverse_penalty[q], penalty, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_lists_measure_as_in_the_plain_loop(seed, metric):
    queries, gallery, asked, held = random_case(seed)
    if metric == "cosine":
        scores = torch.nn.functional.cosine_similarity(queries[:, None], gallery[None], dim=-1)
    else:
        scores = -(queries[:, None] - gallery[None]).square().sum(-1).sqrt()
    expected = by_the_loop(scores, asked, held)
    assert_agrees(retrieval_metrics(queries, gallery, asked, held, metric=metric), expected)
    assert_agrees(retrieval_metrics_of_scores(scores, asked, held), expected)


def test_blocks_do_not_change_the_numbers(monkeypatch):
    queries, gallery, asked, held = random_case(9)
    whole = retrieval_metrics(queries, gallery, asked, held)
    monkeypatch.setattr(module, "TILE", 4 * len(gallery) + 1)
    parts = retrieval_metrics(queries, gallery, asked, held)
    np.testing.assert_array_equal(whole.average_precision, parts.average_precision)
    np.testing.assert_array_equal(whole.first_rank, parts.first_rank)
    assert parts.numbers() == whole.numbers()


def test_a_case_worked_by_hand():
    # Person 1 by camera 1 asks. In order of score: 1 by camera 1 (left out), 2, 1 (right), junk (left out),
    # a distractor 0, 1 (right), 2.
    people, cameras = torch.tensor([1, 2, 1, -1, 0, 1, 2]), torch.tensor([1, 2, 2, 3, 1, 3, 1])
    scores = torch.tensor([[0.9, 0.5, 0.2, 0.1, 0.0, -0.3, -0.8]])
    found = retrieval_metrics_of_scores(
        scores, Shots(torch.tensor([1]), torch.tensor([1])), Shots(people, cameras)
    )
    assert found.average_precision.tolist() == pytest.approx([(1 / 2 + 2 / 4) / 2])
    assert found.first_rank.tolist() == [2]
    assert found.inverse_penalty.tolist() == pytest.approx([2 / 4])
    assert found.numbers() == pytest.approx({"mAP": 0.5, "rank1": 0, "rank5": 1, "rank10": 1, "mINP": 0.5})


def test_without_cameras_nothing_is_left_out():
    scores = torch.tensor([[0.9, 0.5, 0.2]])
    found = retrieval_metrics_of_scores(scores, Shots(torch.tensor([1])), Shots(torch.tensor([1, 2, 1])))
    assert found.average_precision.tolist() == pytest.approx([(1 + 2 / 3) / 2])


def test_only_the_order_of_scores_matters():
    # A library in use counts only positives above zero; ours must not see the sign.
    _, _, asked, held = random_case(2)
    scores = torch.rand(23, 171, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    plain = retrieval_metrics_of_scores(scores, asked, held)
    for changed in (scores - 5, scores + 5, 3 * scores, scores.exp()):
        np.testing.assert_array_equal(
            retrieval_metrics_of_scores(changed, asked, held).average_precision, plain.average_precision
        )


@pytest.mark.parametrize(("size", "offset"), [(1e25, 0.0), (1e-25, 0.0), (1.0, 1000.0)])
def test_euclidean_lists_do_not_depend_on_size_and_origin(size, offset):
    queries, gallery, asked, held = random_case(4)
    plain = retrieval_metrics(queries, gallery, asked, held, metric="euclidean")
    moved = [(size * (offset + points)).float() for points in (queries, gallery)]
    found = retrieval_metrics(*moved, asked, held, metric="euclidean")
    np.testing.assert_allclose(found.average_precision, plain.average_precision, atol=1e-2)


def test_scores_that_are_not_numbers_are_refused():
    _, _, asked, held = random_case(2)
    scores = torch.zeros(23, 171)
    scores[3, 5] = torch.nan
    with pytest.raises(ValueError, match=r"scores must be numbers, got nan at \[3, 5\]"):
        retrieval_metrics_of_scores(scores, asked, held)


def test_a_collapsed_network_earns_nothing_by_ties():
    people = torch.tensor([1, 2, 2, 2, 1, 2])
    found = retrieval_metrics(torch.ones(1, 3), torch.ones(6, 3), Shots(torch.tensor([1])), Shots(people))
    assert found.average_precision.tolist() == pytest.approx([(1 / 5 + 2 / 6) / 2])
    assert found.first_rank.tolist() == [5]


def test_queries_without_a_match_in_another_camera_are_counted_and_left_out():
    asked = Shots(torch.tensor([1, 2, -1]), torch.tensor([1, 1, 1]))
    held = Shots(torch.tensor([1, 2, -1]), torch.tensor([1, 2, 2]))
    found = retrieval_metrics_of_scores(torch.eye(3), asked, held)
    assert found.unmatched == 2  # nobody is the person on junk
    assert found.numbers()["mAP"] == found.rank(1) == 1.0


def test_nearest_lists_what_counts_in_order():
    queries, gallery, asked, held = random_case(4)
    listed = nearest(queries, gallery, asked, held, top=7)
    cosines = torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(gallery).T
    for q, row in enumerate(listed.tolist()):
        left_out = (held.people == asked.people[q]) & (held.cameras == asked.cameras[q])
        kept = [
            j
            for j in cosines[q].argsort(descending=True).tolist()
            if not left_out[j] and held.people[j] != JUNK
        ]
        assert row == kept[:7]
    few = nearest(queries, gallery[:3], asked, Shots(held.people[:3], held.cameras[:3]), top=5)
    assert (few[:, 3:] == -1).all()


def people_of(n: int) -> Shots:
    return Shots(torch.zeros(n, dtype=torch.int64), torch.arange(n))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: retrieval_metrics(torch.ones(2, 3), torch.ones(0, 3), people_of(2), people_of(0)),
            "gallery must contain at least one image",
        ),
        (
            lambda: retrieval_metrics(torch.ones(2, 3), torch.ones(4, 5), people_of(2), people_of(4)),
            "3 and 5",
        ),
        (
            lambda: retrieval_metrics(torch.ones(2, 3), torch.ones(4, 3), people_of(2), people_of(3)),
            r"shape \(4,\)",
        ),
        (
            lambda: retrieval_metrics(
                torch.full((2, 3), torch.nan), torch.ones(4, 3), people_of(2), people_of(4)
            ),
            "nan",
        ),
        (
            lambda: retrieval_metrics(
                torch.ones(2, 3), torch.ones(4, 3), people_of(2), Shots(people_of(4).people)
            ),
            "for neither",
        ),
        (
            lambda: retrieval_metrics(torch.ones(1, 3), torch.ones(1, 3), people_of(1), people_of(1)),
            "None of the 1 queries",
        ),
        (
            lambda: nearest(torch.ones(1, 3), torch.ones(2, 3), people_of(1), people_of(2), top=0),
            "at least 1",
        ),
    ],
)
def test_bad_input_is_named(call, message, unchecked):
    with pytest.raises(ValueError, match=message):
        call()
