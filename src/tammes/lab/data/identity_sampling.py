"""P x K sampling: batches of K images of each of P people, for losses that compare the images of a batch."""

import numpy as np
from jaxtyping import Int

from tammes._common.checks import at_least
from tammes.lab.data import counter_rng
from tammes.lab.data.counter_rng import Stream

IDENTITIES = "identities"


def identities(
    labels: Int[np.ndarray, " n"], seed: int, epoch: int, *, batch_size: int, images: int
) -> Int[np.ndarray, " m"]:
    """Draws of an epoch (see `batches`), batch by batch: `images` of each of P = batch_size / images people.

    Each person's images are shuffled and cut into groups of K = `images`. A batch takes one group from each
    of P random people with groups left. When fewer than P people have any, everyone gets another shuffled
    round of groups. The epoch ends after as many batches as the images would fill. People with fewer than K
    images have them repeated within the group. A remainder of fewer than K images is skipped in that round.

    >>> draws = identities(np.repeat(np.arange(6), 5), seed=0, epoch=0, batch_size=8, images=4)
    >>> people = (draws % 30 // 5).reshape(-1, 2, 4)  # batch, person, image
    >>> len(people), bool((people == people[:, :, :1]).all()), bool((people[:, 0] != people[:, 1]).all())
    (3, True, True)
    """
    n, counts = len(labels), np.bincount(labels)
    people = np.flatnonzero(counts)
    p = _people_of(batch_size, at_least("images_per_person", images, 1), len(people))
    groups, starts = np.maximum(counts // images, 1), np.cumsum(counts) - counts
    left, taken = np.where(counts > 0, groups, 0), np.zeros(len(counts), dtype=np.int64)
    orders: list[np.ndarray] = []  # of all images by person, one per round
    chosen: list[np.ndarray] = []
    for step in range(max(1, n // batch_size)):
        if (left > 0).sum() < p:
            left[people] += groups[people]
        candidates = np.flatnonzero(left)
        chance = counter_rng.bits(seed, epoch, step * len(counts) + candidates, Stream.PERSON)
        for person in candidates[np.argsort(chance, kind="stable")[:p]]:
            turn, group = divmod(taken[person], groups[person])
            while len(orders) <= turn:
                chance = counter_rng.bits(seed, epoch, np.arange(n) + n * len(orders), Stream.IMAGE_OF_PERSON)
                orders.append(np.lexsort((chance, labels)))
            place = (group * images + np.arange(images)) % counts[person]
            chosen.append(orders[turn][starts[person] + place])
            left[person] -= 1
            taken[person] += 1
    drawn = np.concatenate(chosen)
    return drawn + n * counter_rng.ranks(drawn, np.arange(len(drawn)))


def _people_of(batch_size: int, images: int, there: int) -> int:
    """P = batch_size / images, checked to be an integer of at most `there` people."""
    if batch_size % images:
        raise ValueError(
            f"batch_size must be a multiple of images_per_person={images}, got {batch_size}. "
            f"Use {max(1, batch_size // images) * images}."
        )
    if batch_size // images > there:
        raise ValueError(
            f"Batches of {batch_size // images} people need at least that many training identities, and the "
            f"set has {there}. "
            f"Use a batch_size of at most {there * images}."
        )
    return batch_size // images
