r"""Re-ranking by k-reciprocal neighbors (Zhong, Zheng, Cao, Li 2017): mutual neighbors are likely matches.

An image is encoded by its k1-reciprocal neighbors, with weights :math:`e^{-d}` that sum to one and are
averaged over its k2 nearest images. The new distance between a query q and a gallery image g is

.. math::
    (1 - \lambda) \Bigl(1 - \frac{m}{2 - m}\Bigr) + \lambda\, d(q, g), \qquad m = \sum_i \min(V_{qi}, V_{gi})

where d is the squared Euclidean distance divided by the largest in its row. Apart from the result, memory
does not grow with the number of pairs.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tammes._common import checks
from tammes._common.row_blocks import at_least_single, row_slices
from tammes._common.types import Embeddings
from tammes.metrics._query_gallery import check_both, in_metric
from tammes.metrics.retrieval import Metric


@torch.no_grad()
def k_reciprocal_distances(
    queries: Embeddings,
    gallery: Float[Tensor, "g d"],
    *,
    k1: int = 20,
    k2: int = 6,
    weight: float = 0.3,
    metric: Metric = "cosine",
) -> Float[Tensor, "q g"]:
    """Distances between queries and gallery after re-ranking; their negatives can serve as scores.

    Args:
        queries, gallery: Embeddings, one per row; normalized first for "cosine".
        k1: Number of reciprocal neighbors that encode an image.
        k2: Number of nearest images whose encodings are averaged; 1 for no averaging.
        weight: Weight lambda of the original distance.
        metric: Metric of the original distance.
    """
    k2 = checks.at_least("k2", k2, 1)
    k1 = checks.at_least("k1", k1, k2)
    checks.within("weight", weight, 0.0, 1.0)
    check_both(queries, gallery)
    dtype = at_least_single(queries, gallery)
    both = torch.cat(in_metric(metric, queries.to(dtype), gallery.to(dtype))).cpu()
    ranks, largest = _neighbors(both, min(k1 + 1, len(both)))
    described = _described(both, ranks, largest, k1)
    averaged = _averaged(described, ranks[:, : min(k2, len(both))])
    q = len(queries)
    jaccard = _jaccard(averaged[:q], averaged[q:].tocsc())
    original = _distances(both[:q], both[q:]) / largest[:q, None]
    return ((1 - weight) * torch.from_numpy(jaccard).to(original.dtype) + weight * original).to(
        queries.device
    )


def _distances(a: Float[Tensor, "m d"], b: Float[Tensor, "g d"]) -> Float[Tensor, "m g"]:
    """Squared Euclidean distances."""
    squares = a.square().sum(1)[:, None] + b.square().sum(1)
    return squares.addmm_(a, b.T, alpha=-2).clamp_(min=0)


def _neighbors(points: Float[Tensor, "n d"], k: int) -> tuple[Int[np.ndarray, "n k"], Float[Tensor, " n"]]:
    """The k nearest neighbors of each point, itself first, and the distance to the furthest point."""
    nearest, largest = [], []
    for part in row_slices(len(points)):
        distances = _distances(points[part], points)
        largest.append(distances.amax(1))
        own = torch.arange(part.start, part.stop)
        distances[torch.arange(len(own)), own] = -1  # before its duplicates
        nearest.append(distances.topk(k, largest=False).indices)
    far = torch.cat(largest)
    return torch.cat(nearest).numpy(), torch.where(far > 0, far, 1.0)


def _reciprocal(ranks: Int[np.ndarray, "n k"], i: int, k: int) -> Int[np.ndarray, " m"]:
    """The k nearest neighbors of i, including itself, that have i among their own k nearest."""
    near = ranks[i, : k + 1]
    return near[(ranks[near, : k + 1] == i).any(1)]


def _described(
    points: Float[Tensor, "n d"], ranks: Int[np.ndarray, "n k"], largest: Float[Tensor, " n"], k1: int
) -> Any:
    """A sparse matrix whose row i holds the weights of i's expanded reciprocal neighbors."""
    from scipy.sparse import csr_matrix

    half = [_reciprocal(ranks, i, round(k1 / 2)) for i in range(len(ranks))]
    members, weights = [], []
    for i in range(len(ranks)):
        own = _reciprocal(ranks, i, k1)
        # Add a neighbor's own reciprocal neighbors if more than two thirds of them are already included.
        joining = [half[j] for j in own if 3 * np.isin(half[j], own).sum() > 2 * len(half[j])]
        expanded = np.unique(np.concatenate([own, *joining]))
        near = (-_distances(points[i : i + 1], points[expanded])[0] / largest[i]).exp().numpy()
        members.append(expanded)
        weights.append(near / near.sum())
    starts = np.cumsum([0, *map(len, members)])
    return csr_matrix((np.concatenate(weights), np.concatenate(members), starts), (len(ranks), len(ranks)))


def _averaged(described: Any, nearest: Int[np.ndarray, "n k2"]) -> Any:
    """Replace each row by the mean over its nearest points."""
    from scipy.sparse import csr_matrix

    n, k2 = nearest.shape
    mean = csr_matrix(
        (np.full(n * k2, 1 / k2), nearest.reshape(-1), np.arange(0, n * k2 + 1, k2)), (n, n), described.dtype
    )
    return (mean @ described).tocsr()


def _jaccard(queries: Any, gallery: Any) -> Float[np.ndarray, "q g"]:
    """Jaccard distances between encodings; column p of `gallery` lists the images whose encoding has p."""
    distances = np.ones((queries.shape[0], gallery.shape[0]), queries.dtype)
    for i in range(len(distances)):
        named = slice(queries.indptr[i], queries.indptr[i + 1])
        points, own = queries.indices[named], queries.data[named]
        spans = [slice(gallery.indptr[p], gallery.indptr[p + 1]) for p in points]
        images = np.concatenate([gallery.indices[s] for s in spans])
        shared = np.concatenate([np.minimum(w, gallery.data[s]) for w, s in zip(own, spans, strict=True)])
        common = np.bincount(images, shared, len(distances[i]))
        distances[i] = 1 - common / (2 - common)
    return distances
