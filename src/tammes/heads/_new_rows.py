"""Prototypes for new classes, chosen far from the existing ones by random search."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common.row_blocks import row_slices
from tammes._common.types import Embeddings, PerSample, Prototypes
from tammes.geometry.sphere import normalize

BATCH = 512
"""Rows to choose from one set of candidates."""

CANDIDATES = 8 * BATCH


def unit_rows_away_from(
    others: Prototypes, count: int, *, seed: int, over_ranks: Callable[[Tensor], Tensor]
) -> Float[Tensor, "count d"]:
    """`count` unit vectors far from `others` and from each other, identical on all ranks.

    Greedy: repeatedly takes the random candidate that is farthest from all rows so far.

    Args:
        others: Prototypes of this rank.
        count: Number of new rows.
        seed: Seed of the candidates; the same on all ranks.
        over_ranks: Maximum over ranks, to account for the prototypes of the other ranks.
    """
    generator = torch.Generator().manual_seed(seed)
    others = normalize(others.float())
    chosen = others.new_empty(0, others.shape[1])
    while len(chosen) < count:
        drawn = torch.randn(CANDIDATES, others.shape[1], generator=generator)
        candidates = normalize(drawn).to(others.device)
        nearest = torch.maximum(over_ranks(_nearest(candidates, others)), _nearest(candidates, chosen))
        picked = []
        for _ in range(min(BATCH, count - len(chosen))):
            picked.append(candidates[nearest.argmin()])
            nearest = torch.maximum(nearest, candidates @ picked[-1])
        chosen = torch.cat([chosen, torch.stack(picked)])
    return chosen


def _nearest(candidates: Embeddings, rows: Prototypes) -> PerSample:
    """Largest cosine of each candidate with any of the unit `rows`; -1 if there are none."""
    largest = candidates.new_full((len(candidates),), -1.0)
    for some in row_slices(len(rows)):
        largest = torch.maximum(largest, (candidates @ rows[some].T).amax(1))
    return largest
