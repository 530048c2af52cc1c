"""Project embeddings to the plane."""

import numpy as np
from jaxtyping import Float

FEW = 5
ITERATIONS = 500
"""Half of scikit-learn's default, which is enough for a thousand points."""
LEAST_SPREAD = 1e-6
"""Points with entries of about 1 that differ by less than this are equal in single precision."""


def project(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n 2"]:
    """A place in the plane for each unit vector: itself for d <= 2, otherwise by t-SNE; deterministic.

    A linear projection would show nothing for the largest margins: in a regular simplex no plane is better
    than another, and all classes overlap. Points that are all the same are laid out in one place.
    """
    n, d = points.shape
    if d <= 2:
        return np.pad(points, ((0, 0), (0, 2 - d)))
    if n < FEW:
        return points[:, :2]
    scaled = _scaled(points)
    if scaled.std(axis=0).max() < LEAST_SPREAD:  # t-SNE divides by it, and its C code crashes
        return np.zeros((n, 2))
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    layout = TSNE(perplexity=min(30.0, (n - 1) / 3), max_iter=ITERATIONS, init="pca", random_state=0)
    with threadpool_limits(limits=1):  # 40 times slower with several threads, which synchronize at every step
        return np.asarray(layout.fit_transform(scaled.astype(np.float32)), np.float64)


def _scaled(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """`points` divided by their largest entry if that is far from 1; entries that are not finite become 0."""
    finite = np.where(np.isfinite(points), points, 0.0)
    largest = np.abs(finite).max()
    return finite / largest if largest and not 1e-3 < largest < 1e3 else finite
