"""Embeddings laid out in the plane."""

import numpy as np
from jaxtyping import Float

FEW = 5


def project(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n 2"]:
    """A place in the plane for each unit vector: themselves for d <= 2, else by t-SNE, the same each time.

    A plain projection of the best margins shows nothing: in a regular simplex no plane is better than
    another, and all classes fall together.
    """
    n, d = points.shape
    if d <= 2:
        return np.pad(points, ((0, 0), (0, 2 - d)))
    if n < FEW:
        return points[:, :2]
    from sklearn.manifold import TSNE

    layout = TSNE(perplexity=min(30.0, (n - 1) / 3), init="pca", random_state=0)
    return np.asarray(layout.fit_transform(points.astype(np.float32)), np.float64)
