r"""Re-ranking by k-reciprocal neighbours (Zhong, Zheng, Cao, Li 2017): images that name each other are alike.

An image is described by who its k1-reciprocal neighbours are, with weights :math:`e^{-d}` that sum to one and
are averaged over its k2 nearest images. The new distance of a query q and a gallery image g is

.. math::
    (1 - \lambda) \Bigl(1 - \frac{m}{2 - m}\Bigr) + \lambda\, d(q, g), \qquad m = \sum_i \min(V_{qi}, V_{gi})

where d is the squared euclidean distance over the largest in its row. Beside the answer nothing is held that
grows with the number of pairs.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tammes import checks
from tammes.geometry.sphere import normalize
from tammes.geometry.tiles import at_least_single, blocks
from tammes.metrics.retrieval import Metric
from tammes.types import Embeddings


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
    """Distances of queries and gallery after re-ranking; their negatives are scores.

    Args:
        queries, gallery: embeddings, one a row; with "cosine" they are scaled to norm 1 first.
        k1: reciprocal neighbours that describe an image.
        k2: nearest images whose descriptions are averaged; 1 for none.
        weight: lambda, the share of the original distance.
        metric: of the original distance.
    """
    checks.at_least("k2", k2, 1)
    checks.at_least("k1", k1, k2)
    checks.within("weight", weight, 0.0, 1.0)
    both = torch.cat([queries, gallery]).to(at_least_single(queries, gallery))
    both = (normalize(both) if metric == "cosine" else both).cpu()
    ranks, largest = _neighbours(both, min(k1 + 1, len(both)))
    described = _described(both, ranks, largest, k1)
    averaged = _averaged(described, ranks[:, : min(k2, len(both))])
    q = len(queries)
    jaccard = _jaccard(averaged[:q], averaged[q:].tocsc())
    original = _distances(both[:q], both[q:]) / largest[:q, None]
    return ((1 - weight) * torch.from_numpy(jaccard).to(original.dtype) + weight * original).to(
        queries.device
    )


def _distances(a: Float[Tensor, "m d"], b: Float[Tensor, "g d"]) -> Float[Tensor, "m g"]:
    """Squared euclidean distances."""
    squares = a.square().sum(1)[:, None] + b.square().sum(1)
    return squares.addmm_(a, b.T, alpha=-2).clamp_(min=0)


def _neighbours(points: Float[Tensor, "n d"], k: int) -> tuple[Int[np.ndarray, "n k"], Float[Tensor, " n"]]:
    """The k nearest of each point, itself first, and the distance to its furthest."""
    nearest, largest = [], []
    for part in blocks(len(points)):
        distances = _distances(points[part], points)
        largest.append(distances.amax(1))
        own = torch.arange(part.start, part.stop)
        distances[torch.arange(len(own)), own] = -1  # before its duplicates
        nearest.append(distances.topk(k, largest=False).indices)
    far = torch.cat(largest)
    return torch.cat(nearest).numpy(), torch.where(far > 0, far, 1.0)


def _reciprocal(ranks: Int[np.ndarray, "n k"], i: int, k: int) -> Int[np.ndarray, " m"]:
    """Those of i's k nearest, itself included, that have i among their k nearest."""
    near = ranks[i, : k + 1]
    return near[(ranks[near, : k + 1] == i).any(1)]


def _described(
    points: Float[Tensor, "n d"], ranks: Int[np.ndarray, "n k"], largest: Float[Tensor, " n"], k1: int
) -> Any:
    """A sparse matrix: row i has the weights of i's expanded reciprocal neighbours."""
    from scipy.sparse import csr_matrix

    half = [_reciprocal(ranks, i, round(k1 / 2)) for i in range(len(ranks))]
    members, weights = [], []
    for i in range(len(ranks)):
        own = _reciprocal(ranks, i, k1)
        # A neighbour's own neighbours join where more than two thirds of them are there already.
        joining = [half[j] for j in own if 3 * np.isin(half[j], own).sum() > 2 * len(half[j])]
        expanded = np.unique(np.concatenate([own, *joining]))
        near = (-_distances(points[i : i + 1], points[expanded])[0] / largest[i]).exp().numpy()
        members.append(expanded)
        weights.append(near / near.sum())
    starts = np.cumsum([0, *map(len, members)])
    return csr_matrix((np.concatenate(weights), np.concatenate(members), starts), (len(ranks), len(ranks)))


def _averaged(described: Any, nearest: Int[np.ndarray, "n k2"]) -> Any:
    """Each row replaced by the mean of the rows of its nearest points."""
    from scipy.sparse import csr_matrix

    n, k2 = nearest.shape
    mean = csr_matrix(
        (np.full(n * k2, 1 / k2), nearest.reshape(-1), np.arange(0, n * k2 + 1, k2)), (n, n), described.dtype
    )
    return (mean @ described).tocsr()


def _jaccard(queries: Any, gallery: Any) -> Float[np.ndarray, "q g"]:
    """Jaccard distances of descriptions; columns of `gallery` tell which images name a point."""
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
