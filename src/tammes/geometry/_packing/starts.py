"""Starting points of a search: random ones, symmetric ones, and resized known codes."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.geometry._descent import Points
from tammes.geometry._packing.library import codes_in
from tammes.geometry._packing.multistart import Further, default_restarts, few_moves, random_starts, small
from tammes.geometry._packing.resizing import relocated, resized_codes, shaken
from tammes.geometry._packing.symmetry import symmetric_starts

_OF_EACH = 6
# A further round takes a quarter of the time of the first one.
_RELOCATED, _FRESH = 32, 4


def known_codes(k: int, d: int, seed: int) -> list[Float[Tensor, "k d"]]:
    """Codes of k points by construction, with the one made for this size first."""
    return resized_codes(_OF_EACH, k, d, _generator(seed, 0))


def all_starts(restarts: int | None, k: int, d: int, seed: int, known: list[Float[Tensor, "k d"]]) -> Points:
    """Random starts; for small but difficult problems also symmetric ones and perturbed known codes."""
    starts = random_starts(restarts, k, d, seed)
    if not _structured(k, d):
        return starts
    generator = _generator(seed, 1)
    parts = [starts, symmetric_starts(len(starts), k, d, generator)]
    return torch.cat([*parts, *(shaken(code, generator)[None] for code in known)])


def further_starts(restarts: int | None, k: int, d: int, seed: int) -> Further | None:
    """More symmetric starts, and the best code so far with some points moved to its deepest holes.

    None if a known code has this size: the first round shows whether it can be improved easily.
    """
    if not _structured(k, d) or any(code.k == k for code in codes_in(d)):
        return None
    count, generator = default_restarts(k, d) if restarts is None else restarts, _generator(seed, 2)

    def further(
        best: Float[Tensor, "rows d"],
    ) -> tuple[Float[Tensor, "fresh rows d"], Float[Tensor, "moved rows d"]]:
        moved = shaken(relocated(best, min(count, _RELOCATED), generator), generator)
        return symmetric_starts(max(1, count // _FRESH), k, d, generator), moved

    return further


def _structured(k: int, d: int) -> bool:
    """Whether structured starts are worthwhile: random ones miss the optimum, and there is time to search."""
    return small(k, d) and not few_moves(k, d)


def _generator(seed: int, use: int) -> torch.Generator:
    return torch.Generator().manual_seed(3 * seed + use + 1)
