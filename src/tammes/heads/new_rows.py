"""Prototypes for classes that join others: as far away from them as a search over random points finds."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.geometry.sphere import normalize
from tammes.geometry.tiles import blocks
from tammes.types import Embeddings, PerSample, Prototypes

BATCH = 512
"""Rows that are chosen from one set of candidates."""

CANDIDATES = 8 * BATCH


def unit_rows_away_from(
    others: Prototypes, count: int, *, seed: int, over_ranks: Callable[[Tensor], Tensor]
) -> Float[Tensor, "count d"]:
    """`count` unit vectors away from `others` and from each other, the same on all ranks.

    Of many random candidates the one that is farthest from all rows so far is taken, again and again.

    Args:
        others: the prototypes of this rank.
        count: how many.
        seed: of the candidates; the same on all ranks.
        over_ranks: the maximum over ranks, for the nearest of the other ranks' prototypes.
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
    """The largest cosine of each candidate with any of the unit `rows`; -1 where there are none."""
    largest = candidates.new_full((len(candidates),), -1.0)
    for some in blocks(len(rows)):
        largest = torch.maximum(largest, (candidates @ rows[some].T).amax(1))
    return largest
