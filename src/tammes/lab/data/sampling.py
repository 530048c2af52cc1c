"""The order of samples in an epoch, a function of (seed, epoch) only.

A draw is an integer: the sample's index, plus the size of the set for each earlier draw of that sample in the
epoch. So a sample drawn twice is augmented differently, and nothing depends on batches, ranks or workers.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from tammes._common.checks import one_of
from tammes.lab.data import counter_rng
from tammes.lab.data.counter_rng import Stream

LabelArray = Int[np.ndarray, " n"]
Draws = Int[np.ndarray, " m"]


def shuffled(labels: LabelArray, seed: int, epoch: int) -> Draws:
    """Every sample once."""
    return counter_rng.permutation(seed, epoch, len(labels))


def balanced(labels: LabelArray, seed: int, epoch: int) -> Draws:
    """Every class equally often, with as many draws as there are samples.

    Each class cycles through its samples in random order. If the draws do not divide evenly, each epoch
    chooses different classes to get one draw more.

    >>> draws = balanced(np.array([0, 0, 0, 0, 0, 1]), seed=0, epoch=0)
    >>> sorted((draws % 6).tolist())[-3:]
    [5, 5, 5]
    """
    n = len(labels)
    classes, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    turns = np.full(len(classes), n // len(classes))
    turns[(epoch * (n % len(classes)) + np.arange(n % len(classes))) % len(classes)] += 1
    rounds = -(-turns // counts)
    candidates = np.concatenate([np.arange(n)[r < rounds[place]] + r * n for r in range(rounds.max())])
    own = place[candidates % n]
    chance = counter_rng.bits(seed, epoch, candidates, Stream.TURN)
    chosen = candidates[counter_rng.ranks(own, chance, candidates // n) < turns[own]]
    return chosen[np.argsort(counter_rng.bits(seed, epoch, chosen, Stream.ORDER), kind="stable")]


SAMPLINGS: dict[str, Callable[[LabelArray, int, int], Draws]] = {"shuffled": shuffled, "balanced": balanced}


def draws(sampling: str, labels: LabelArray, seed: int, epoch: int) -> Draws:
    """Draws of an epoch by the named `sampling` method."""
    return SAMPLINGS[one_of("sampling", sampling, tuple(SAMPLINGS))](labels, seed, epoch)
