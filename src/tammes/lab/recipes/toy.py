"""The toy experiment: eight classes on the sphere in three dimensions, with free prototypes and features.

Paper (appendix C.1): NormFace 68.50, CosFace 71.86, ArcFace 67.74, LM-Softmax 74.46 deg after 500,000 epochs
of SGD; the optimum is 74.86. Those runs stalled (erratum 12): for k = 8 NormFace, CosFace and LM-Softmax
share one optimum that depends on s alone, and L-BFGS reaches it within seconds. LM-Softmax as printed falls
short of the Tammes angle where k > d + 1 makes classes unequal (k = 7 in 2-d, 13 in 3-d); with `lse`
reduction it does not.
Run: tammes reproduce toy
"""

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tammes._common.checks import reading
from tammes.geometry.margins import class_margin, gamma_min, mean_sample_margin
from tammes.geometry.packing import pack
from tammes.geometry.sphere import normalize
from tammes.lab.record_stamp import stamp, write_record
from tammes.lab.report.sphere_figure import Panel, draw_spheres
from tammes.lab.report.tables import Cell, Grid
from tammes.lab.training.record_checks import check_list
from tammes.losses import ArcFace, CosFace, LMSoftmax, NormFace, Objective
from tammes.theory import free_features

CLASSES, DIMENSIONS = 8, 3
PER_CLASS = 10
SCALE = 30.0
LEARNING_RATE = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
ANNEALING = 10_000
"""T_max of the paper's cosine schedule. Over 500,000 epochs it oscillates, and ends at its largest value."""

COMPILE_FROM = 10_000
"""Epochs from which compiling the step (ten seconds) pays: an epoch then takes a fiftieth of the time."""

GROWING_SCALES = (64.0, 1024.0, 16384.0, 262144.0)
"""Scales of LM-Softmax `lse`, each started from the last optimum. Starting lower misses the one of k = 13."""

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
"""(k, d) where LM-Softmax with `mean` and with `lse` reduction have different optima, or might."""

DESCENT, GROWING = "descent", "descent, growing s"
"""Methods besides SGD: L-BFGS to the optimum of an objective, and of LM-Softmax `lse` as s grows."""


def experiment_settings(*, epochs: int, seed: int) -> dict[str, Any]:
    """Every choice behind the table. The paper states neither s nor m nor the learning rate."""
    return {
        "epochs": epochs,
        "seed": seed,
        "samples per class": PER_CLASS,
        "learning rate": LEARNING_RATE,
        "momentum": MOMENTUM,
        "weight decay": WEIGHT_DECAY,
        "T_max": ANNEALING,
        "objectives": {name: str(objective) for name, objective in OBJECTIVES.items()},
        "growing s": GROWING_SCALES,
    }


class ToyResult(NamedTuple):
    """A row of the table: the result of one method of placing k classes in d dimensions."""

    k: int
    d: int
    loss: str
    objective: str
    method: str
    class_margin: float  # degrees
    share: float  # of the angle of the best packing
    gamma_min: float
    mean_margin: float
    seconds: float
    printed: float | None  # degrees, the paper's


class Configuration(NamedTuple):
    """Prototypes and features on the sphere; for SGD also the class margin during training."""

    prototypes: Tensor
    features: Tensor
    labels: Tensor
    curve: list[float] = []  # noqa: RUF012  degrees, every `ANNEALING` epochs


ToyPoints = tuple[Tensor, Tensor]
"""Prototypes and features, or their velocities."""


def sgd(
    objective: Objective, k: int, d: int, *, epochs: int, seed: int, tick: Callable[[int], None]
) -> Configuration:
    """The paper's recipe: random prototypes and ten features per class, SGD with a cosine schedule."""
    generator = torch.Generator().manual_seed(seed)
    points = (torch.randn(k, d, generator=generator), torch.randn(PER_CLASS * k, d, generator=generator))
    velocity = (torch.zeros_like(points[0]), torch.zeros_like(points[1]))
    labels = torch.arange(k).repeat(PER_CLASS)
    step, curve = sgd_step(objective, labels), list[float]()
    if epochs >= COMPILE_FROM and shutil.which("g++"):
        step = torch.compile(step, fullgraph=True)
    for epoch in range(epochs):
        points, velocity = step(points, velocity, torch.tensor(annealed(epoch)))
        tick(epoch + 1)
        if (epoch + 1) % ANNEALING == 0:
            curve.append(math.degrees(class_margin(points[0].double()).item()))
    return Configuration(points[0].double(), points[1].double(), labels, curve)


def sgd_step(
    objective: Objective, labels: Tensor
) -> Callable[[ToyPoints, ToyPoints, Tensor], tuple[ToyPoints, ToyPoints]]:
    """One step of `torch.optim.SGD` on all points, as a function that can be compiled whole."""
    gradient = torch.func.grad(lambda points: objective(points[1], points[0], labels))

    def step(points: ToyPoints, velocity: ToyPoints, rate: Tensor) -> tuple[ToyPoints, ToyPoints]:
        decayed = [g + WEIGHT_DECAY * x for x, g in zip(points, gradient(points), strict=True)]
        prototypes, features = (MOMENTUM * v + g for v, g in zip(velocity, decayed, strict=True))
        return (points[0] - rate * prototypes, points[1] - rate * features), (prototypes, features)

    return step


def annealed(epoch: int) -> float:
    """Learning rate of an epoch, counted from 0: `torch.optim.lr_scheduler.CosineAnnealingLR`."""
    return LEARNING_RATE * (1 + math.cos(math.pi * epoch / ANNEALING)) / 2


def descend(objective: Objective, k: int, d: int, *, seed: int) -> Configuration:
    """Descend to the objective's optimum by L-BFGS, where all samples of a class coincide."""
    found = free_features(objective, [PER_CLASS] * k, d, seed=seed)
    return Configuration(found.points, found.features, torch.arange(k))


def grow(k: int, d: int, *, seed: int) -> Configuration:
    """Descend LM-Softmax `lse` with growing scale. Its optimum tends to the Tammes configuration."""
    found = None
    for scale in GROWING_SCALES:
        objective = LMSoftmax(scale=scale, reduction="lse")
        found = free_features(objective, [1] * k, d, seed=seed, start=found)
    assert found is not None
    return Configuration(found.points, found.features, torch.arange(k))


def by_sgd(
    name: str, *, epochs: int, seed: int = 0, tick: Callable[[int], None] = lambda epoch: None
) -> tuple[ToyResult, Configuration]:
    """Train the loss called `name` by the paper's recipe; `tick` is called after every epoch."""
    objective = OBJECTIVES[name]
    run = partial(sgd, objective, CLASSES, DIMENSIONS, epochs=epochs, seed=seed, tick=tick)
    return measure(CLASSES, DIMENSIONS, name, str(objective), f"SGD, {epochs:,} epochs", run)


Tick = Callable[[int], None]
"""Called after every epoch."""

ProgressDisplay = Callable[[str], AbstractContextManager[Tick]]
"""Opens a progress display for the named loss."""


def no_progress(name: str) -> AbstractContextManager[Tick]:
    """Show nothing."""
    return nullcontext(lambda epoch: None)


def trained(
    name: str, *, epochs: int, seed: int, out: str, progress: ProgressDisplay = no_progress
) -> tuple[ToyResult, Configuration]:
    """`by_sgd`, from its record in `out`/toy if there is one; otherwise train and write the record."""
    key = re.sub(r"[^a-z]+", "-", name.lower()).strip("-")
    path = Path(out) / "toy" / f"{key}-{epochs}-seed{seed}.json"
    if path.is_file():
        with reading(path, "Delete it and train the loss again."):
            return from_record(json.loads(path.read_text(encoding="utf-8")))
    with progress(name) as tick:
        row, found = by_sgd(name, epochs=epochs, seed=seed, tick=tick)
    config = {"config": experiment_settings(epochs=epochs, seed=seed)}
    write_record(path, config | stamp(seconds=row.seconds) | to_record(row, found))
    return row, found


class ToyTable(NamedTuple):
    """The table, and the files written."""

    grid: Grid
    files: Sequence[Path]


def reproduce_toy(
    *, epochs: int = 20_000, seed: int = 0, out: str = "results", progress: ProgressDisplay = no_progress
) -> ToyTable:
    """Run every method and write toy.json, toy.png and toy.html into `out`."""
    start, files = time.perf_counter(), [Path(out) / f"toy.{end}" for end in ("json", "png", "html")]
    train = partial(trained, epochs=epochs, seed=seed, out=out, progress=progress)
    found = list(placements(train, seed=seed))
    record = {"config": experiment_settings(epochs=epochs, seed=seed)} | stamp(
        seconds=time.perf_counter() - start
    )
    write_record(files[0], record | {"rows": [row._asdict() for row, _ in found]})
    panels = _panels(found)
    draw_spheres(panels, files[1])
    draw_spheres([panel._replace(title=panel.title.replace("\n", " ")) for panel in panels], files[2])
    return ToyTable(_grid([row for row, _ in found]), files)


def placements(
    train: Callable[[str], tuple[ToyResult, Configuration]], *, seed: int = 0
) -> Iterator[tuple[ToyResult, Configuration]]:
    """Every row of the table, with its configuration for the figure.

    Args:
        train: gives the SGD row of the loss of that name.
        seed: seed of the random starts.
    """
    for name, objective in OBJECTIVES.items():
        yield train(name)
        run = partial(descend, objective, CLASSES, DIMENSIONS, seed=seed)
        yield measure(CLASSES, DIMENSIONS, name, str(objective), DESCENT, run)
    printed_form = OBJECTIVES["LM-Softmax (mean)"]
    for k, d in OTHER_SIZES:
        run = partial(descend, printed_form, k, d, seed=seed)
        yield measure(k, d, "LM-Softmax (mean)", str(printed_form), DESCENT, run)
    growing = f'LMSoftmax(s={GROWING_SCALES[0]:g} to {GROWING_SCALES[-1]:g}, reduction="lse")'
    for k, d in ((CLASSES, DIMENSIONS), *OTHER_SIZES):
        yield measure(k, d, "LM-Softmax (lse)", growing, GROWING, partial(grow, k, d, seed=seed))


def measure(
    k: int, d: int, loss: str, objective: str, method: str, run: Callable[[], Configuration]
) -> tuple[ToyResult, Configuration]:
    """Run, time and evaluate one method of placing the classes."""
    start = time.perf_counter()
    found = run()
    seconds = time.perf_counter() - start
    angle = class_margin(found.prototypes).item()
    where = (found.features, found.prototypes, found.labels)
    in_paper = (k, d) == (CLASSES, DIMENSIONS) and method != GROWING
    row = ToyResult(
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
        printed=PRINTED.get(loss) if in_paper else None,
    )
    return row, found


def to_record(row: ToyResult, found: Configuration) -> dict[str, Any]:
    """A row and its configuration as JSON."""
    where = {name: value.tolist() for name, value in found._asdict().items() if name != "curve"}
    return {"row": row._asdict(), "curve_deg": found.curve} | where


def from_record(stored: dict[str, Any]) -> tuple[ToyResult, Configuration]:
    """A row and its configuration as `to_record` stored them."""
    prototypes, features = (
        torch.tensor(stored[name], dtype=torch.float64) for name in ("prototypes", "features")
    )
    labels = torch.tensor(stored["labels"])
    if prototypes.shape != (CLASSES, DIMENSIONS) or features.shape != (len(labels), DIMENSIONS):
        raise ValueError(f"it has prototypes of shape {tuple(prototypes.shape)}")
    row, curve = ToyResult(**stored["row"]), stored["curve_deg"]
    numbers = [value for value in row._replace(printed=row.printed or 0.0) if not isinstance(value, str)]
    check_list("the numbers of its row", numbers, 8)
    check_list("curve_deg", curve, len(curve))
    return row, Configuration(prototypes, features, labels, curve)


def _panels(found: Sequence[tuple[ToyResult, Configuration]]) -> list[Panel]:
    """One sphere for each loss by SGD, and the best configuration that descent finds."""
    eight = [(row, points) for row, points in found if (row.k, row.d) == (CLASSES, DIMENSIONS)]
    panels = [
        _panel(f"{row.loss}\n{row.class_margin:.2f}°", points)
        for row, points in eight
        if row.method.startswith("SGD")
    ]
    best, points = next((row, points) for row, points in eight if row.method == GROWING)
    return [*panels, _panel(f"lse, growing s\n{best.class_margin:.4f}°", points)]


def _panel(title: str, found: Configuration) -> Panel:
    return Panel(title, normalize(found.prototypes).numpy(), normalize(found.features).numpy())


def _grid(rows: Sequence[ToyResult]) -> Grid:
    heads = ("k", "d", "loss", "method", "m_cls deg", "paper", "of optimum", "gamma_min", "mean margin", "s")
    lines = [
        (
            str(row.k),
            str(row.d),
            row.loss,
            row.method,
            f"{row.class_margin:.4f}",
            "" if row.printed is None else f"{row.printed:.2f}",
            f"{100 * row.share:.3f} %",
            f"{row.gamma_min:.5f}",
            f"{row.mean_margin:.5f}",
            f"{row.seconds:.2f}",
        )
        for row in rows
    ]
    return Grid("", heads, [("", [[Cell(text) for text in line] for line in lines])], words=4)
