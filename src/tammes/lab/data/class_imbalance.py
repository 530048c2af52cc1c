"""Class imbalance: created by subsampling the training images of any data set, or found in it."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from tammes._common import checks
from tammes.lab.data import counter_rng
from tammes.lab.data.counter_rng import Stream
from tammes.lab.data.dataset import DataSet

Kind = Literal["long_tailed", "step"]
KINDS = ("long_tailed", "step")


@dataclass(frozen=True)
class Imbalance:
    """Profile of class sizes. `str` writes its text form and `parse_imbalance` reads it.

    >>> str(Imbalance("step", 10))
    'step:10'
    """

    kind: Kind = "long_tailed"
    ratio: float = 100.0
    minority: float = 0.5

    def __post_init__(self) -> None:
        checks.one_of("The kind of imbalance", self.kind, KINDS)
        if checks.finite("The ratio of an imbalance", self.ratio) < 1:
            raise ValueError(
                f"The ratio of the largest class to the smallest must be at least 1, got {self.ratio}."
            )
        checks.within("minority", self.minority, 0.0, 1.0, "It is the fraction of rare classes.")

    def __str__(self) -> str:
        rare = f":{self.minority:g}" if self.kind == "step" and self.minority != 0.5 else ""
        return f"{self.kind}:{self.ratio:g}{rare}"


def parse_imbalance(text: str) -> Imbalance:
    """Parse an `Imbalance` from KIND:RATIO or step:RATIO:MINORITY.

    >>> parse_imbalance("long_tailed:100")
    Imbalance(kind='long_tailed', ratio=100.0, minority=0.5)
    """
    kind, *numbers = text.split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if kind not in KINDS or not 1 <= len(values) <= (2 if kind == "step" else 1):
        raise ValueError(f"imbalance must be long_tailed:100, step:10 or step:10:0.3, got {text!r}.")
    return Imbalance(kind, *values)  # type: ignore[arg-type]


def imbalanced_sizes(
    most: int, classes: int, kind: Kind = "long_tailed", ratio: float = 100.0, minority: float = 0.5
) -> tuple[int, ...]:
    r"""Number of images of each class.

    Long-tailed (Cui et al. 2019): :math:`\lfloor n_{max}\, \rho^{-j/(k-1)} \rfloor` for class j of k.
    Step (Buda et al. 2018): :math:`\lfloor n_{max} / \rho \rfloor` for the last `minority` fraction of the
    classes, :math:`n_{max}` for the others.

    >>> imbalanced_sizes(5000, 10)
    (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)
    >>> imbalanced_sizes(5000, 4, "step", 10)
    (5000, 5000, 500, 500)
    """
    if kind == "long_tailed":
        exponents = [j / (classes - 1) for j in range(classes)]
    else:
        rare = round(minority * classes)
        exponents = [float(j >= classes - rare) for j in range(classes)]
    # Floating-point error just below an integer must not cost an image.
    return tuple(math.floor(most * ratio**-exponent * (1 + 1e-12)) for exponent in exponents)


def imbalance(
    dataset: DataSet,
    kind: Kind = "long_tailed",
    ratio: float = 100.0,
    minority: float = 0.5,
    seed: int = 0,
) -> DataSet:
    """Subsample the training images of `dataset` to `class_sizes`. Test images are unchanged.

    The largest class keeps as many images as the smallest class of `dataset` has. The subset is random, with
    seed `seed`.

    Args:
        dataset: any data set.
        kind: "long_tailed" (sizes decay exponentially over the classes) or "step" (two sizes).
        ratio: size of the largest class over that of the smallest.
        minority: fraction of rare classes, for "step".
        seed: seed of the subset.

    >>> from tammes.lab.data import load
    >>> imbalance(load("digits"), "step", 10).class_counts.tolist()
    [139, 139, 139, 139, 139, 13, 13, 13, 13, 13]
    """
    profile = Imbalance(kind, ratio, minority)
    counts = dataset.class_counts
    most = int(counts.min())
    sizes = imbalanced_sizes(most, len(counts), kind, ratio, minority)
    if min(sizes) < 1:
        raise ValueError(
            f"{profile} would leave no image of class {dataset.classes[sizes.index(min(sizes))]!r}: the "
            f"largest class has {most}. The largest ratio possible is {most}."
        )
    kept = _chosen(dataset.train.labels.numpy(), np.array(sizes), seed)
    train = dataset.train.select(torch.from_numpy(kept))
    return replace(dataset, name=f"{dataset.name} {profile}", train=train)


def _chosen(labels: np.ndarray, sizes: np.ndarray, seed: int) -> np.ndarray:
    """Draw the given number of samples of each class at random; indices are ascending."""
    chance = counter_rng.bits(seed, 0, np.arange(len(labels)), Stream.IMBALANCE)
    return (counter_rng.ranks(labels, chance) < sizes[labels]).nonzero()[0]
