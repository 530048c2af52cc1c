"""The toy experiment: eight classes on the sphere in three dimensions, prototypes and features both free.

Paper (appendix C.1): NormFace 68.50, CosFace 71.86, ArcFace 67.74, LM-Softmax 74.46 deg after 500,000 epochs
of SGD; the optimum is 74.86. Those are stalled runs (erratum 12): for k = 8 NormFace, CosFace and LM-Softmax
share one optimum that depends on s alone, and descent reaches it in a moment. The printed LM-Softmax falls
short of the Tammes angle where k > d + 1 makes classes unequal (k = 7 in 2-d, 13 in 3-d); its `lse` does not.
Run: tammes reproduce toy
"""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tammes.geometry.margins import class_margin, gamma_min, mean_sample_margin
from tammes.geometry.packing import pack
from tammes.losses import ArcFace, CosFace, LMSoftmax, NormFace, Objective
from tammes.theory import free_features

PER_CLASS = 10
SCALE = 30.0
LEARNING_RATE = 0.1
ANNEALING = 10_000
"""T_max of the paper's cosine: over 500,000 epochs the rate swings up and down, and ends at its largest."""

GROWTH = (64.0, 1024.0, 16384.0, 262144.0)
"""Scales of LM-Softmax `lse`, each from where the last one ended; a smaller first one misses k = 13."""

OBJECTIVES: dict[str, Objective] = {
    "NormFace": NormFace(scale=SCALE),
    "CosFace": CosFace(scale=SCALE, margin=0.35),
    "ArcFace": ArcFace(scale=SCALE, margin=0.5),
    "LM-Softmax (mean)": LMSoftmax(scale=SCALE),
    "LM-Softmax (lse)": LMSoftmax(scale=SCALE, reduction="lse"),
}

PRINTED = {"NormFace": 68.50, "CosFace": 71.86, "ArcFace": 67.74, "LM-Softmax (mean)": 74.46}
"""Class margins of the paper's Fig. 3, in degrees."""

OTHER_SIZES = ((7, 2), (7, 3), (13, 3))
"""(k, d) where the mean of LM-Softmax and its log-sum-exp part ways, or might."""


def settings(*, epochs: int, seed: int) -> dict[str, Any]:
    """Every choice behind the table; the paper states neither s, m nor the learning rate."""
    return {
        "epochs": epochs,
        "seed": seed,
        "samples per class": PER_CLASS,
        "learning rate": LEARNING_RATE,
        "momentum": 0.9,
        "weight decay": 1e-4,
        "T_max": ANNEALING,
        "objectives": {name: str(objective) for name, objective in OBJECTIVES.items()},
        "growing s": GROWTH,
    }


class Row(NamedTuple):
    """One way to place k classes in d dimensions, and what came of it."""

    k: int
    d: int
    loss: str
    objective: str
    method: str
    class_margin: float  # degrees
    share: float  # of the best packing's angle
    gamma_min: float
    mean_margin: float
    seconds: float
    printed: float | None  # degrees, the paper's


class Configuration(NamedTuple):
    """Prototypes and features on the sphere."""

    prototypes: Tensor
    features: Tensor
    labels: Tensor


def sgd(
    objective: Objective, k: int, d: int, *, epochs: int, seed: int, tick: Callable[[int], None]
) -> Configuration:
    """The paper's recipe: random prototypes and ten features per class, momentum 0.9, decay 1e-4, cosine."""
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(k, d, generator=generator).requires_grad_()
    features = torch.randn(PER_CLASS * k, d, generator=generator).requires_grad_()
    labels = torch.arange(k).repeat(PER_CLASS)
    optimizer = torch.optim.SGD([prototypes, features], lr=LEARNING_RATE, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=ANNEALING)
    for epoch in range(epochs):
        optimizer.zero_grad()
        objective(features, prototypes, labels).backward()
        optimizer.step()
        schedule.step()
        tick(epoch + 1)
    return Configuration(prototypes.detach().double(), features.detach().double(), labels)


def descend(objective: Objective, k: int, d: int, *, seed: int) -> Configuration:
    """To the objective's own optimum by L-BFGS; all samples of a class share one place there."""
    found = free_features(objective, [PER_CLASS] * k, d, seed=seed)
    return Configuration(found.points, found.features, torch.arange(k))


def grow(k: int, d: int, *, seed: int) -> Configuration:
    """LM-Softmax `lse` with growing scale: its optimum tends to the Tammes configuration."""
    found = None
    for scale in GROWTH:
        objective = LMSoftmax(scale=scale, reduction="lse")
        found = free_features(objective, [1] * k, d, seed=seed, start=found)
    assert found is not None
    return Configuration(found.points, found.features, torch.arange(k))


def rows(
    *, epochs: int, seed: int = 0, tick: Callable[[int], None] = lambda epoch: None
) -> Iterator[tuple[Row, Configuration]]:
    """Every row of the table as it is finished, with its configuration for the figure."""
    for name, objective in OBJECTIVES.items():
        by_sgd = partial(sgd, objective, 8, 3, epochs=epochs, seed=seed, tick=tick)
        yield measured(8, 3, name, str(objective), f"SGD, {epochs:,} epochs", by_sgd)
        yield measured(8, 3, name, str(objective), "descent", partial(descend, objective, 8, 3, seed=seed))
    printed_form = OBJECTIVES["LM-Softmax (mean)"]
    growing = f'LMSoftmax(s={GROWTH[0]:g} to {GROWTH[-1]:g}, reduction="lse")'
    for k, d in OTHER_SIZES:
        run = partial(descend, printed_form, k, d, seed=seed)
        yield measured(k, d, "LM-Softmax (mean)", str(printed_form), "descent", run)
    for k, d in ((8, 3), *OTHER_SIZES):
        yield measured(
            k, d, "LM-Softmax (lse)", growing, "descent, growing s", partial(grow, k, d, seed=seed)
        )


def measured(
    k: int, d: int, loss: str, objective: str, method: str, run: Callable[[], Configuration]
) -> tuple[Row, Configuration]:
    """Run, time and measure one way to place the classes."""
    start = time.perf_counter()
    found = run()
    seconds = time.perf_counter() - start
    angle = class_margin(found.prototypes).item()
    where = (found.features, found.prototypes, found.labels)
    printed = PRINTED.get(loss) if (k, d) == (8, 3) and method != "descent, growing s" else None
    row = Row(
        k=k,
        d=d,
        loss=loss,
        objective=objective,
        method=method,
        class_margin=math.degrees(angle),
        share=angle / pack(k, d).angle,
        gamma_min=gamma_min(*where).item(),
        mean_margin=mean_sample_margin(*where).item(),
        seconds=seconds,
        printed=printed,
    )
    return row, found
