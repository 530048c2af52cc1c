"""Skewed classes: made from any data set by thinning out its training images, or found in it."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from tammes import checks
from tammes.data import counter
from tammes.data.counter import Stream
from tammes.data.dataset import DataSet

Kind = Literal["long_tailed", "step"]
KINDS = ("long_tailed", "step")


@dataclass(frozen=True)
class Imbalance:
    """How classes are thinned out; `str` and `parse_imbalance` are its text form.

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
        checks.within("minority", self.minority, 0.0, 1.0, "It is the share of the classes that are rare.")

    def __str__(self) -> str:
        rare = f":{self.minority:g}" if self.kind == "step" and self.minority != 0.5 else ""
        return f"{self.kind}:{self.ratio:g}{rare}"


def parse_imbalance(text: str) -> Imbalance:
    """An `Imbalance` from KIND:RATIO or step:RATIO:MINORITY.

    >>> parse_imbalance("long_tailed:100")
    Imbalance(kind='long_tailed', ratio=100.0, minority=0.5)
    """
    kind, *numbers = text.split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if kind not in KINDS or not 1 <= len(values) <= (2 if kind == "step" else 1):
        raise ValueError(f"imbalance must read long_tailed:100, step:10 or step:10:0.3, got {text!r}.")
    return Imbalance(kind, *values)  # type: ignore[arg-type]


def class_sizes(
    most: int, classes: int, kind: Kind = "long_tailed", ratio: float = 100.0, minority: float = 0.5
) -> tuple[int, ...]:
    r"""The number of images of each class.

    Long-tailed (Cui et al. 2019): :math:`\lfloor n_{max}\, \rho^{-j/(k-1)} \rfloor` for class j of k.
    Step (Buda et al. 2018): the last `minority` share of the classes have
    :math:`\lfloor n_{max} / \rho \rfloor`, the others all.

    >>> class_sizes(5000, 10)
    (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)
    >>> class_sizes(5000, 4, "step", 10)
    (5000, 5000, 500, 500)
    """
    if kind == "long_tailed":
        exponents = [j / (classes - 1) for j in range(classes)]
    else:
        rare = round(minority * classes)
        exponents = [float(j >= classes - rare) for j in range(classes)]
    # What rounding takes off a whole number must not cost an image.
    return tuple(math.floor(most * ratio**-exponent * (1 + 1e-12)) for exponent in exponents)


def imbalance(
    dataset: DataSet,
    kind: Kind = "long_tailed",
    ratio: float = 100.0,
    minority: float = 0.5,
    seed: int = 0,
) -> DataSet:
    """`dataset` with its training classes thinned out as `class_sizes` says; test images stay.

    The largest class gets as many images as the smallest one of `dataset` has; which ones stay is drawn by
    `seed`.

    Args:
        dataset: any.
        kind: "long_tailed": sizes fall class by class; "step": they fall once.
        ratio: of the largest class to the smallest.
        minority: share of the classes that are rare, for "step".
        seed: of the draw.

    >>> from tammes.data import load
    >>> imbalance(load("digits"), "step", 10).class_counts.tolist()
    [139, 139, 139, 139, 139, 13, 13, 13, 13, 13]
    """
    wanted = Imbalance(kind, ratio, minority)
    counts = dataset.class_counts
    most = int(counts.min())
    sizes = class_sizes(most, len(counts), kind, ratio, minority)
    if min(sizes) < 1:
        raise ValueError(
            f"{wanted} would leave no image of class {dataset.classes[sizes.index(min(sizes))]!r}: the "
            f"largest class has {most}. The largest ratio possible is {most}."
        )
    kept = _chosen(dataset.train.labels.numpy(), np.array(sizes), seed)
    train = dataset.train.select(torch.from_numpy(kept))
    return replace(dataset, name=f"{dataset.name} {wanted}", train=train)


def _chosen(labels: np.ndarray, sizes: np.ndarray, seed: int) -> np.ndarray:
    """So many samples of each class at random; indices ascending."""
    chance = counter.bits(seed, 0, np.arange(len(labels)), Stream.IMBALANCE)
    return (counter.ranks(labels, chance) < sizes[labels]).nonzero()[0]
