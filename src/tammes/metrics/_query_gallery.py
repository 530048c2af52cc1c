"""Queries and a gallery: validation, and coordinates in which Euclidean distances are those of a metric."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common import tensor_checks
from tammes._common.types import Embeddings
from tammes.geometry.sphere import normalize


def check_both(queries: Tensor, gallery: Tensor) -> None:
    """Check that both are finite matrices with the same number of columns."""
    for name, matrix in (("queries", queries), ("gallery", gallery)):
        tensor_checks.check_matrix(name, matrix)
        if not torch.isfinite(matrix.sum()):  # far cheaper than checking every entry
            tensor_checks.check_finite(name, matrix)
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"queries and gallery must have the same number of columns, got {queries.shape[1]} and "
            f"{gallery.shape[1]}. Embed both with the same network."
        )


def in_metric(
    metric: str, queries: Embeddings, gallery: Float[Tensor, "g d"]
) -> tuple[Embeddings, Float[Tensor, "g d"]]:
    """Embeddings whose Euclidean distances are in the order that `metric` asks for.

    For "euclidean" they are scaled and centred, which changes all distances by the same factor, so that
    squares of large entries do not overflow and a common offset does not cancel.
    """
    if metric == "cosine":
        return normalize(queries), normalize(gallery)
    peak = torch.maximum(queries.abs().amax(), gallery.abs().amax())
    peak = torch.where(peak > 0, peak, 1.0)
    queries, gallery = queries / peak, gallery / peak
    center = gallery.mean(0)
    return queries - center, gallery - center
