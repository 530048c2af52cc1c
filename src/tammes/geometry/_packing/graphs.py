"""Codes from strongly regular graphs: vertices projected on an eigenspace of the adjacency matrix."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common.types import Prototypes
from tammes.geometry._packing.layers import in_own_span
from tammes.geometry.sphere import normalize


def least_eigenspace(adjacency: Float[Tensor, "k k"]) -> Prototypes:
    """The axes of a graph's vertices, projected on the eigenspace of its least eigenvalue."""
    values, vectors = torch.linalg.eigh(adjacency)
    return normalize(in_own_span(vectors[:, values < values[0] + 1e-6]))


def hoffman_singleton_50() -> Prototypes:
    """Vertices of the Hoffman-Singleton graph; 21 dimensions, cosine 1/21.

    Robertson's construction: five pentagons, five pentagrams, and an edge from corner j of pentagon h to
    corner h i + j of pentagram i.
    """
    adjacency = torch.zeros(2, 5, 5, 2, 5, 5, dtype=torch.float64)
    for h in range(5):
        for j in range(5):
            adjacency[0, h, j, 0, h, (j + 1) % 5] = 1
            adjacency[1, h, j, 1, h, (j + 2) % 5] = 1
            for i in range(5):
                adjacency[0, h, j, 1, i, (h * i + j) % 5] = 1
    matrix = adjacency.view(50, 50)
    return least_eigenspace(matrix + matrix.T)
