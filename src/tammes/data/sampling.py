"""The order in which an epoch draws samples, a function of (seed, epoch) alone.

A draw is a number: the sample's index, plus the size of the set for each time it was drawn before in the
epoch. So a sample drawn twice is augmented in two ways, and nothing depends on batches, ranks or workers.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from tammes.checks import one_of
from tammes.data import counter
from tammes.data.counter import Stream

Labels = Int[np.ndarray, " n"]
Draws = Int[np.ndarray, " m"]


def shuffled(labels: Labels, seed: int, epoch: int) -> Draws:
    """Every sample once."""
    return counter.permutation(seed, epoch, len(labels))


def balanced(labels: Labels, seed: int, epoch: int) -> Draws:
    """Every class equally often, in as many draws as there are samples.

    Each class goes through all its samples in random order before one comes again; classes whose turn a
    remainder leaves out are others in each epoch.

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
    chance = counter.bits(seed, epoch, candidates, Stream.TURN)
    chosen = candidates[counter.ranks(own, chance, candidates // n) < turns[own]]
    return chosen[np.argsort(counter.bits(seed, epoch, chosen, Stream.ORDER), kind="stable")]


SAMPLINGS: dict[str, Callable[[Labels, int, int], Draws]] = {"shuffled": shuffled, "balanced": balanced}


def draws(sampling: str, labels: Labels, seed: int, epoch: int) -> Draws:
    """The draws of an epoch by the `sampling` of that name."""
    return SAMPLINGS[one_of("sampling", sampling, tuple(SAMPLINGS))](labels, seed, epoch)
