import numpy as np
import pytest
import torch

from tammes.metrics.reranking import k_reciprocal_distances
from tammes.metrics.retrieval import Shots, retrieval_metrics, retrieval_metrics_of_scores


def plain(points: np.ndarray, q: int, k1: int, k2: int, weight: float) -> np.ndarray:
    """The published procedure on the whole matrix of distances, set by set."""
    n = len(points)
    distances = ((points[:, None] - points[None]) ** 2).sum(-1)
    distances = distances / distances.max(1, keepdims=True)
    ranks = np.argsort(distances, axis=1, kind="stable")

    def reciprocal(i: int, k: int) -> set[int]:
        return {int(j) for j in ranks[i, : k + 1] if i in ranks[j, : k + 1]}

    described = np.zeros((n, n))
    for i in range(n):
        expanded = own = reciprocal(i, k1)
        for j in own:
            theirs = reciprocal(j, round(k1 / 2))
            if len(theirs & own) > 2 / 3 * len(theirs):
                expanded = expanded | theirs
        for j in expanded:
            described[i, j] = np.exp(-distances[i, j])
    described /= described.sum(1, keepdims=True)
    described = np.stack([described[ranks[i, :k2]].mean(0) for i in range(n)])
    jaccard = np.empty((q, n - q))
    for i in range(q):
        for j in range(q, n):
            least, most = np.minimum(described[i], described[j]), np.maximum(described[i], described[j])
            jaccard[i, j - q] = 1 - least.sum() / most.sum()
    return (1 - weight) * jaccard + weight * distances[:q, q:]


@pytest.mark.parametrize(("k1", "k2", "weight"), [(20, 6, 0.3), (7, 1, 0.0), (5, 3, 1.0)])
def test_distances_are_those_of_the_published_procedure(k1, k2, weight):
    points = np.random.default_rng(k1).normal(size=(60, 4)).round(3)
    both = torch.from_numpy(points)
    found = k_reciprocal_distances(both[:9], both[9:], k1=k1, k2=k2, weight=weight, metric="euclidean")
    np.testing.assert_allclose(found, plain(points, 9, k1, k2, weight), atol=1e-12)
    units = points / np.linalg.norm(points, axis=1, keepdims=True)
    found = k_reciprocal_distances(both[:9], both[9:], k1=k1, k2=k2, weight=weight)
    np.testing.assert_allclose(found, plain(units, 9, k1, k2, weight), atol=1e-12)


def test_reranking_helps_where_classes_are_threads():
    # Points along two far arcs: the ends of an arc are further apart than the arcs, but neighbors link them.
    t = torch.linspace(0, 1, 40, dtype=torch.float64)
    arcs = torch.stack([torch.stack([3 * t, t * 0], 1), torch.stack([3 * t, t * 0 + 0.7], 1)]).flatten(0, 1)
    people = torch.arange(2).repeat_interleave(40)
    query, rest = torch.tensor([0, 40]), torch.tensor([*range(1, 40), *range(41, 80)])
    asked, held = Shots(people[query]), Shots(people[rest])
    before = retrieval_metrics(arcs[query], arcs[rest], asked, held, metric="euclidean")
    distances = k_reciprocal_distances(arcs[query], arcs[rest], metric="euclidean")
    after = retrieval_metrics_of_scores(-distances, asked, held)
    assert after.numbers()["mAP"] > before.numbers()["mAP"] + 0.02


@pytest.mark.parametrize(("size", "offset"), [(1e25, 0.0), (1e-25, 0.0), (1.0, 1000.0)])
def test_distances_do_not_depend_on_size_and_origin(size, offset):
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 4)))
    plain = k_reciprocal_distances(points[:9], points[9:], metric="euclidean")
    moved = (size * (offset + points)).float()
    found = k_reciprocal_distances(moved[:9], moved[9:], metric="euclidean")
    np.testing.assert_allclose(found, plain, atol=1e-3)


def test_bad_input_is_named(unchecked):
    with pytest.raises(ValueError, match="gallery must be finite, got nan"):
        k_reciprocal_distances(torch.ones(1, 2), torch.full((3, 2), torch.nan))
    with pytest.raises(ValueError, match="k1 must be at least 6, got 3"):
        k_reciprocal_distances(torch.ones(1, 2), torch.ones(3, 2), k1=3)
    with pytest.raises(ValueError, match="weight must lie"):
        k_reciprocal_distances(torch.ones(1, 2), torch.ones(3, 2), weight=2.0)
