import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.spatial.distance import cdist, squareform

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
    """t-SNE divides by the spread of its start, which may be zero."""
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


def divergence(points, places):
    """What t-SNE minimizes, with scikit-learn's affinities."""
    from sklearn.manifold._t_sne import _joint_probabilities

    distances = cdist(points, points, "sqeuclidean").astype(np.float32)
    joint = squareform(_joint_probabilities(distances, 30.0, 0))
    kernel = 1 / (1 + cdist(places, places, "sqeuclidean"))
    np.fill_diagonal(kernel, 0.0)
    there = joint > 0
    return (joint[there] * np.log(joint[there] * kernel.sum() / kernel[there])).sum()


def test_the_layout_is_as_good_as_scikit_learns():
    from sklearn.manifold import TSNE

    rng = np.random.default_rng(0)
    points = rng.normal(size=(20, 64))[rng.integers(20, size=400)] + 1.2 * rng.normal(size=(400, 64))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    theirs = TSNE(max_iter=500, init="pca", random_state=0).fit_transform(points.astype(np.float32))
    assert divergence(points, project(points)) < 1.02 * divergence(points, theirs)


def test_the_layout_does_not_wait_for_other_threads_or_for_scikit_learn():
    """scikit-learn took 14 s of processor time with two threads for 144 points, and a second to import."""
    code = """if True:
        import sys, time, numpy as np
        from tammes.lab.report.projection import project
        points = np.random.default_rng(0).normal(size=(144, 64))
        start = time.process_time()
        project(points)
        assert "sklearn" not in sys.modules
        print(time.process_time() - start)
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert float(done.stdout) < 2
