import subprocess
import sys

import numpy as np
import pytest

from tammes.lab.report.projection import project


def test_neighbors_stay_neighbors_and_the_map_is_the_same_each_time():
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


CROWDS = {
    "one place": lambda rng: np.tile(rng.normal(size=(1, 8)), (200, 1)),
    "zero": lambda rng: np.zeros((200, 8)),
    "one place but for rounding": lambda rng: 1 + 1e-9 * rng.normal(size=(200, 8)),
    "very large": lambda rng: 1e300 * rng.normal(size=(200, 8)),
    "very small": lambda rng: 1e-300 * rng.normal(size=(200, 8)),
    "not finite": lambda rng: np.where(rng.random((200, 8)) < 0.1, np.nan, rng.normal(size=(200, 8))),
    "two places": lambda rng: np.eye(8)[np.arange(200) % 2],
    "all but one": lambda rng: np.eye(8)[(np.arange(200) == 0).astype(int)],
}


def test_no_points_end_the_process(tmp_path):
    """t-SNE divides by the spread of its start, and its C code dies of what comes of a spread of zero."""
    np.savez(
        tmp_path / "points.npz", **{kind: make(np.random.default_rng(0)) for kind, make in CROWDS.items()}
    )
    code = """if True:
        import sys, warnings, numpy as np
        from tammes.lab.report.projection import project
        warnings.simplefilter("error", RuntimeWarning)
        for kind, points in np.load(sys.argv[1]).items():
            print(kind, flush=True)
            places = project(points)
            assert places.shape == (200, 2) and np.isfinite(places).all(), places
    """
    words = [sys.executable, "-c", code, str(tmp_path / "points.npz")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stdout.splitlines() == list(CROWDS)


def test_the_layout_uses_one_thread(monkeypatch):
    """With two, 144 points took 14 s of processor time in place of 0.4."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_info

    seen = []

    def fit_transform(self, points):
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return points[:, :2]

    monkeypatch.setattr(TSNE, "fit_transform", fit_transform)
    project(np.random.default_rng(0).normal(size=(20, 5)))
    assert seen
    assert set(seen) == {1}
