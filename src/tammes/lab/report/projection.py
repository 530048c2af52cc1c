"""Project embeddings to the plane.

t-SNE for the thousand points of a page, where plain matrices are as fast as scikit-learn's trees, and done
before scikit-learn would be imported.
"""

import math

import numpy as np
from jaxtyping import Float, Int

FEW = 5
LEAST_SPREAD = 1e-6
"""Points with entries of about 1 that differ by less than this are equal in single precision."""
PERPLEXITY = 30.0
EXAGGERATED, ITERATIONS = 100, 350
"""Iterations with exaggerated attraction, and all. From the principal components, they give a layout as good
as scikit-learn's after 500, of which 250 exaggerate."""
EXAGGERATION = 12.0

Places = Float[np.ndarray, "n 2"]


def project(points: Float[np.ndarray, "n d"]) -> Places:
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
    if scaled.std(axis=0).max() < LEAST_SPREAD:
        return np.zeros((n, 2))
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):  # products of such thin matrices only wait for further threads
        return _descend(_affinities(scaled), _principal_components(scaled))


def _scaled(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """`points` divided by their largest entry if that is far from 1; entries that are not finite become 0."""
    finite = np.where(np.isfinite(points), points, 0.0)
    largest = np.abs(finite).max()
    return finite / largest if largest and not 1e-3 < largest < 1e3 else finite


def _affinities(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n n"]:
    r"""The symmetric joint distribution :math:`P` of t-SNE (van der Maaten and Hinton 2008)."""
    n = len(points)
    perplexity = min(PERPLEXITY, (n - 1) / 3)
    neighbors, distances = _nearest(points, min(n - 1, int(3 * perplexity) + 1))
    joint = np.zeros((n, n))
    np.put_along_axis(joint, neighbors, _conditional(distances, math.log(perplexity)), axis=1)
    return (joint + joint.T) / (2 * n)


def _nearest(
    points: Float[np.ndarray, "n d"], count: int
) -> tuple[Int[np.ndarray, "n count"], Float[np.ndarray, "n count"]]:
    """The nearest other points of each point, and their squared distances less the smallest."""
    squares = (points**2).sum(1)
    distances = squares[:, None] + squares - 2 * points @ points.T
    np.fill_diagonal(distances, np.inf)
    neighbors = np.argpartition(distances, count - 1, axis=1)[:, :count]
    near = np.take_along_axis(distances, neighbors, axis=1)
    return neighbors, near - near.min(axis=1, keepdims=True)


def _conditional(distances: Float[np.ndarray, "n m"], entropy: float) -> Float[np.ndarray, "n m"]:
    """Gaussian weights of the neighbors, of sum 1 and of the given entropy, by bisection of the precision."""
    low, high = np.zeros((len(distances), 1)), np.full((len(distances), 1), np.inf)
    precision = np.ones_like(low)
    for _ in range(64):
        shares, total = _gaussian(distances, precision)
        found = np.log(total) + precision * (distances * shares).sum(1, keepdims=True)
        low, high = np.where(found > entropy, precision, low), np.where(found > entropy, high, precision)
        precision = np.where(np.isinf(high), 2 * precision, (low + high) / 2)
    return _gaussian(distances, precision)[0]


def _gaussian(
    distances: Float[np.ndarray, "n m"], precision: Float[np.ndarray, "n 1"]
) -> tuple[Float[np.ndarray, "n m"], Float[np.ndarray, "n 1"]]:
    """The shares of the weights in each row, and their sum."""
    weights = np.exp(-distances * precision)
    total = weights.sum(1, keepdims=True)
    return weights / total, total


def _principal_components(points: Float[np.ndarray, "n d"]) -> Places:
    """Roughly the first two, by subspace iteration, at the small scale from which t-SNE starts."""
    random = np.random.default_rng(0)
    centered = points - points.mean(0)
    basis = random.normal(size=(points.shape[1], 2))
    for _ in range(20):
        basis = np.linalg.qr(centered.T @ (centered @ basis))[0]
    places = centered @ basis
    # The noise parts points that are equal, and fills the plane if all points are on a line.
    return 1e-4 * places / places.std(axis=0).max() + 1e-6 * random.normal(size=places.shape)


def _descend(joint: Float[np.ndarray, "n n"], places: Places) -> Places:
    """Minimize the divergence of the distribution of `places` from `joint`, with momentum and gains."""
    n, rate = len(places), max(len(places) / (4 * EXAGGERATION), 50.0)
    joint, ones = joint.astype(np.float32), np.ones((n, 1), np.float32)
    places, speed, gains = places.astype(np.float32), np.zeros((n, 2)), np.ones((n, 2))
    kernel, forces = np.empty((2, n, n), np.float32)
    for iteration in range(ITERATIONS):
        early = iteration < EXAGGERATED
        strength = EXAGGERATION if early else 1.0
        squares = (places**2).sum(1, keepdims=True)
        # 1 + the squared distances as one product
        np.matmul(
            np.hstack([places, squares, ones]), np.hstack([-2 * places, ones, squares + 1]).T, out=kernel
        )
        np.reciprocal(kernel, out=kernel)
        np.fill_diagonal(kernel, 0.0)
        np.multiply(kernel, np.float32(-1 / (strength * kernel.sum())), out=forces)
        forces += joint
        forces *= kernel
        pull = forces @ np.hstack([places, ones])
        gradient = 4.0 * strength * (pull[:, 2:] * places - pull[:, :2])
        gains = np.where(speed * gradient < 0, gains + 0.2, gains * 0.8).clip(min=0.01)
        speed = (0.5 if early else 0.8) * speed - rate * gains * gradient
        places = (places + speed).astype(np.float32)
    return places.astype(np.float64)
