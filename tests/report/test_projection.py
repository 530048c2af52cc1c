import numpy as np
import pytest

from tammes.report.projection import project


def test_neighbours_stay_neighbours_and_the_map_is_the_same_each_time():
    """Four orthogonal classes, which no projection on a plane keeps apart."""
    labels = np.arange(60) % 4
    points = np.eye(6)[labels] + np.random.default_rng(0).normal(0, 0.05, (60, 6))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    places = project(points)
    distances = np.linalg.norm(places[:, None] - places[None], axis=2) + 1e9 * np.eye(60)
    assert (labels[distances.argmin(1)] == labels).all()
    np.testing.assert_array_equal(project(points), places)


@pytest.mark.parametrize(("n", "d"), [(3, 1), (3, 2), (3, 7), (7, 2)])
def test_few_points_and_few_dimensions_need_no_layout(n, d):
    points = np.random.default_rng(0).normal(size=(n, d))
    places = project(points)
    assert places.shape == (n, 2)
    np.testing.assert_array_equal(places[:, : min(d, 2)], points[:, :2])
