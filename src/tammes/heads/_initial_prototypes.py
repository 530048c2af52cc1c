"""Initial prototypes that do not depend on the number of ranks."""

from collections.abc import Iterator

import torch

from tammes._common.types import Prototypes
from tammes.geometry.sphere import normalize, randomly_rotated

SEED_ROWS = 1024
"""Number of rows drawn from one seed."""


def packed_prototypes(k: int, d: int) -> Prototypes:
    """k prototypes packed as far apart as possible, then randomly rotated.

    Without the rotation a prototype can point into the negative orthant, which features behind a ReLU never
    reach. The rotation does not depend on the global seed, so the ranks of a sharded head agree on it.
    """
    from tammes.geometry.packing import pack

    return randomly_rotated(pack(k, d).points, torch.Generator().manual_seed(0))


def random_rows(seed: int, first: int, last: int, d: int) -> Iterator[tuple[int, Prototypes]]:
    """Random unit rows `first` to `last`, in consecutive pieces, each with the index of its first row.

    Row i depends only on the seed and on i, so ranks can draw their own rows.

    >>> whole = [rows for _, rows in random_rows(0, 0, 3000, 2)]
    >>> (_, part), *_ = random_rows(0, 1500, 1600, 2)
    >>> torch.equal(torch.cat(whole)[1500:1600], part)
    True
    """
    for start in range(first // SEED_ROWS * SEED_ROWS, last, SEED_ROWS):
        rows = normalize(torch.randn(SEED_ROWS, d, generator=torch.Generator().manual_seed(seed + start)))
        low, high = max(start, first), min(start + SEED_ROWS, last)
        yield low, rows[low - start : high - start]
