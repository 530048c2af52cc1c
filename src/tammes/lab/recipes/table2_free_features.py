"""Table 2 without a network: the class margin of each row's optimum when features are free (erratum 17).

For NormFace, CosFace and ArcFace at lambda = 0 on CIFAR-10 this is within 0.3 deg of the printed margins
where the paper's runs converged; a run that is further off did not reach its optimum.
Run: tammes reproduce table2 --free-features
"""

import dataclasses
import math
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tammes.geometry.simplices import simplex
from tammes.geometry.sphere import normalize
from tammes.lab.data.class_imbalance import imbalanced_sizes, parse_imbalance
from tammes.lab.recipes import table2
from tammes.lab.recipes.row_records import read_rows
from tammes.lab.recipes.table import Preset
from tammes.lab.recipes.table2 import Dataset, ImbalanceText
from tammes.lab.record_stamp import stamp, write_record
from tammes.lab.report.free_features_figure import draw_free_features
from tammes.lab.report.tables import Cell, Grid
from tammes.losses import Objective, parse
from tammes.theory import FreeFeatures, free_features

DIMENSIONS = 512
"""Feature dimensions of the paper's ResNets."""

TRAINING_SETS = {"cifar10": (5000, 10), "cifar100": (500, 100)}
"""Training images per class, and number of classes."""

TOLERANCE = 0.3
"""Degrees within which a printed margin counts as the optimum's."""


class Setting(NamedTuple):
    """The cells of the table that differ in lambda only."""

    dataset: Dataset
    imbalance: ImbalanceText
    loss: str


class FreeMargin(NamedTuple):
    """A cell with the class margin of its optimum."""

    dataset: Dataset
    imbalance: ImbalanceText
    loss: str
    strength: int  # lambda
    objective: str
    class_margin_deg: float
    largest_deg: float  # of any prototypes
    printed_deg: float
    gradient: float
    seconds: float
    cpu_seconds: float

    @property
    def gap(self) -> float:
        """Printed minus computed, in degrees."""
        return self.printed_deg - self.class_margin_deg

    @property
    def near(self) -> bool:
        """Whether the printed margin is the optimum's."""
        return abs(self.gap) <= TOLERANCE


class FreeFeatureTables(NamedTuple):
    """One table per data set, what they show, and the files written."""

    grids: Sequence[Grid]
    verdict: Sequence[str]
    files: Sequence[Path]


Track = Callable[[Iterable["list[FreeMargin]"], int], Iterable["list[FreeMargin]"]]
"""Passes the results through as they come and shows progress; the number is how many there will be."""

PROCESSES = 2


def reproduce_free_features(
    *, preset: Preset = "laptop", out: str = "results/table2", track: Track = lambda found, _: found
) -> FreeFeatureTables:
    """Compute every class margin, write the record and the figure, and lay the tables out.

    Args:
        preset: preset whose trained rows to show next to the computed margins.
        out: directory of the records and of the figure.
        track: shows progress over the settings.
    """
    start, wanted = time.perf_counter(), list(all_settings())
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        found = [cell for cells in track(pool.map(free_margins, wanted), len(wanted)) for cell in cells]
    verdict, files = findings(found), [Path(out) / "free_features.json", Path(out) / "free_features.png"]
    stored = [cell._asdict() | {"gap_deg": cell.gap} for cell in found]
    record = {"config": _record_config()} | stamp(seconds=time.perf_counter() - start)
    cost = {"cpu_seconds": round(sum(cell.cpu_seconds for cell in found), 2), "processes": PROCESSES}
    write_record(files[0], record | cost | {"verdict": verdict, "rows": stored})
    draw_free_features(stored, files[1])
    by_dataset: dict[str, list[FreeMargin]] = {}
    for cell in found:
        by_dataset.setdefault(cell.dataset, []).append(cell)
    return FreeFeatureTables([_grid(cells, preset, out) for cells in by_dataset.values()], verdict, files)


def _record_config() -> dict[str, Any]:
    """Every choice behind the numbers."""
    kinds = [(dataset, imbalance) for dataset in table2.NAMES for imbalance in table2.IMBALANCES]
    return {
        "dimensions": DIMENSIONS,
        "lambdas": table2.LAMBDAS,
        "factor of lambda": 100,
        "losses": table2.LOSSES,
        "class counts": {f"{d} {i}": class_counts(d, i) for d, i in kinds},
    }


def all_settings() -> Iterator[Setting]:
    """Every setting; CE and Focal have no optimum (Theorem 3.1)."""
    for dataset in table2.NAMES:
        for imbalance in table2.IMBALANCES:
            for loss in table2.LOSSES:
                yield Setting(dataset, imbalance, loss)


def class_counts(dataset: str, imbalance: str) -> tuple[int, ...]:
    """Training images of each class."""
    most, classes = TRAINING_SETS[dataset]
    return imbalanced_sizes(most, classes, **dataclasses.asdict(parse_imbalance(imbalance)))


def objective(loss: str, strength: float) -> Objective:
    """A loss of the table with lambda."""
    return parse(table2.with_r_w(table2.LOSSES[loss], strength))


def free_margins(setting: Setting, strengths: Sequence[int] = table2.LAMBDAS) -> list[FreeMargin]:
    """The optima of a setting, in the order of `strengths`.

    Found from the strongest to the weakest, each from the one before: R_w leads to the simplex, whence the
    others are not far.
    """
    start, found = _near_simplex(TRAINING_SETS[setting.dataset][1]), {}
    for strength in sorted(strengths, reverse=True):
        start, found[strength] = free_margin(setting, strength, start)
    return [found[strength] for strength in strengths]


def free_margin(setting: Setting, strength: int, start: FreeFeatures) -> tuple[FreeFeatures, FreeMargin]:
    """Descend one objective to its optimum, with the class counts of one setting."""
    dataset, imbalance, loss = setting
    counts, wanted = class_counts(dataset, imbalance), objective(loss, strength)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the gradient shows what has not converged
        found = free_features(wanted, counts, DIMENSIONS, start=start)
    printed = table2.printed(dataset, imbalance)[f"{table2.loss_name(loss)}-{strength}"]
    cell = FreeMargin(
        dataset=dataset,
        imbalance=imbalance,
        loss=loss,
        strength=strength,
        objective=str(wanted),
        class_margin_deg=math.degrees(found.class_margin),
        largest_deg=math.degrees(math.acos(-1 / (len(counts) - 1))),
        printed_deg=printed["class_margin_deg"],
        gradient=found.gradient,
        seconds=found.seconds,
        cpu_seconds=time.process_time() - began,
    )
    return found, cell


def _near_simplex(k: int) -> FreeFeatures:
    """A start close to where R_w leads, but not symmetric: several times faster than a random one."""
    noise = torch.randn(k, DIMENSIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise[:, k + 1 :] = 0  # the subspace of the simplex and one more direction are enough
    points = normalize(simplex(k, DIMENSIONS, dtype=torch.float64) + 1e-3 * noise)
    return FreeFeatures(points, points, class_margin=0.0, loss=0.0, gradient=0.0, seconds=0.0)


def findings(cells: Sequence[FreeMargin]) -> list[str]:
    """What the comparison shows, in sentences."""
    plain = [cell for cell in cells if cell.strength == 0 and cell.dataset == "cifar10"]
    off = [cell for cell in plain if not cell.near]
    said = [
        f"CIFAR-10, lambda = 0: {len(plain) - len(off)} of {len(plain)} printed margins are the optimum's."
    ]
    if off:
        names = "; ".join(
            f"{c.loss} {c.imbalance} ({c.printed_deg:.2f}, optimum {c.class_margin_deg:.2f})" for c in off
        )
        said.append(f"More than {TOLERANCE} deg off, so not converged: {names}.")
    with_r_w = [cell for cell in cells if cell.strength and cell.dataset == "cifar10"]
    if with_r_w:
        short = sum(cell.gap < -TOLERANCE for cell in with_r_w)
        said.append(f"CIFAR-10, lambda > 0: {short} of {len(with_r_w)} printed margins fall short by more.")
    return said


def _grid(cells: Sequence[FreeMargin], preset: Preset, out: str) -> Grid:
    """Computed, printed and, where rows are finished, trained class margins of one data set."""
    dataset = cells[0].dataset
    imbalances: list[ImbalanceText] = list(dict.fromkeys(cell.imbalance for cell in cells))
    trained = {kind: _trained_margins(dataset, kind, preset, out) for kind in imbalances}
    heads = [head for kind in imbalances for head in (kind, "paper", *(["ours"] if trained[kind] else []))]
    blocks: dict[str, dict[int, list[Cell]]] = {}
    for cell in cells:
        label = Cell(f"{cell.loss} (lambda={cell.strength})")
        line = blocks.setdefault(cell.loss, {}).setdefault(cell.strength, [label])
        line += [Cell(f"{cell.class_margin_deg:.2f}"), Cell(f"{cell.printed_deg:.2f}")]
        if trained[cell.imbalance]:
            ours = trained[cell.imbalance].get(f"{table2.loss_name(cell.loss)}-{cell.strength}")
            line.append(Cell("" if ours is None else f"{ours:.2f}"))
    title = f"Class margins with free features on {table2.NAMES[dataset]}, in degrees"
    return Grid(title, ["", *heads], [("", list(lines.values())) for lines in blocks.values()])


def _trained_margins(
    dataset: Dataset, imbalance: ImbalanceText, preset: Preset, out: str
) -> dict[str, float]:
    """Class margins of the finished rows, by name."""
    table = table2.table(dataset=dataset, imbalance=imbalance, preset=preset, out=out)
    records = read_rows(table.rows, Path(out))
    return {
        key.removeprefix(table.prefix): record["metrics"]["class_margin_deg"]
        for key, record in records.items()
        if "class_margin_deg" in record.get("metrics", {})
    }
