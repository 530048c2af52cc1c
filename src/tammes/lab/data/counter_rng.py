"""Random numbers as a function of (seed, epoch, sample), not of what was drawn before.

A stateful generator would give a sample different numbers whenever the batch size, the number of ranks or
workers, or the resume step changes. Here each number is a hash of its coordinates: the index-th output of
SplitMix64 (Steele, Lea, Flood 2014), started at a key made from seed, epoch and stream.
"""

from enum import IntEnum

import numpy as np
from jaxtyping import Float, Int, UInt64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Stream(IntEnum):
    """Purpose of a random number, so that no two uses share their draws."""

    ORDER = 0
    DOWN = 1
    RIGHT = 2
    FLIP = 3
    HOLD_OUT = 4
    AREA = 5
    ASPECT = 6
    TOP = 7
    LEFT = 8
    IMBALANCE = 9
    TURN = 10
    ANGLE = 11
    BRIGHTNESS = 12
    CONTRAST = 13
    SATURATION = 14
    ERASE = 20
    ERASE_AREA = 21
    ERASE_ASPECT = 22
    ERASE_TOP = 23
    ERASE_LEFT = 24
    PERSON = 25
    IMAGE_OF_PERSON = 26
    TRIVIAL = 27
    PAIRS = 30


def bits(seed: int, epoch: int, indices: Int[np.ndarray, " n"], stream: Stream) -> UInt64[np.ndarray, " n"]:
    """64 random bits for each index.

    >>> whole = bits(3, 1, np.arange(5), Stream.ORDER)
    >>> bool((bits(3, 1, np.array([4, 2]), Stream.ORDER) == whole[[4, 2]]).all())
    True
    """
    key = np.zeros(1, np.uint64)
    for part in (seed, epoch, int(stream)):
        key = _mix((key ^ np.uint64(part)) + GOLDEN)
    return _mix(key + (indices.astype(np.uint64) + np.uint64(1)) * GOLDEN)


def integers(
    seed: int, epoch: int, indices: Int[np.ndarray, " n"], stream: Stream, high: int
) -> Int[np.ndarray, " n"]:
    """A uniform integer in [0, high) for each index, high below 2^32."""
    upper = bits(seed, epoch, indices, stream) >> np.uint64(32)
    return ((upper * np.uint64(high)) >> np.uint64(32)).astype(np.int64)


def uniforms(
    seed: int, epoch: int, indices: Int[np.ndarray, " n"], stream: Stream
) -> Float[np.ndarray, " n"]:
    """A uniform number in [0, 1) for each index."""
    return (bits(seed, epoch, indices, stream) >> np.uint64(11)) * 2.0**-53


def permutation(seed: int, epoch: int, n: int) -> Int[np.ndarray, " n"]:
    """Random order of n samples in an epoch."""
    return np.argsort(bits(seed, epoch, np.arange(n), Stream.ORDER), kind="stable")


def ranks(groups: Int[np.ndarray, " n"], *keys: np.ndarray) -> Int[np.ndarray, " n"]:
    """Rank of each entry within its group, sorted by `keys`, the last key being the primary one.

    >>> ranks(np.array([0, 1, 0, 1]), np.array([7, 3, 5, 4])).tolist()
    [1, 0, 0, 1]
    """
    order = np.lexsort((*keys, groups))
    sizes = np.bincount(groups)
    places = np.empty_like(order)
    places[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def _mix(x: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
