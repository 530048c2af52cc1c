"""Optima that the paper does not cover: losses that differ for k > d + 1, minority collapse, softmax codes.

Prototypes and features are free variables: the optimum that a trained network could at best reach.
Run: tammes reproduce limits
"""

import json
import math
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tammes._common.checks import reading
from tammes.geometry.margins import class_margin, gamma_min
from tammes.geometry.packing import pack, softmax_code
from tammes.geometry.sphere import angle, normalize
from tammes.lab.recipes import table2
from tammes.lab.recipes.row_records import read_rows
from tammes.lab.record_stamp import commit, stamp, write_record
from tammes.lab.report.minority_figure import draw_minority_collapse
from tammes.lab.training.record_checks import check_list
from tammes.losses import (
    LDAM,
    ArcFace,
    CosFace,
    CrossEntropy,
    LMSoftmax,
    NormFace,
    Objective,
    SampleMargin,
    SphereFace,
    ZeroCentroid,
)
from tammes.theory import free_features

Job = tuple[str, Callable[[], dict[str, Any]]]
"""The key of a row, and the function that computes it."""

SIZES = ((4, 3), (6, 3), (7, 2), (8, 3), (10, 4), (13, 3))
SCALE = 16.0
LOSSES: dict[str, Objective] = {
    "NormFace": NormFace(scale=SCALE),
    "CosFace": CosFace(scale=SCALE, margin=0.35),
    "SphereFace": SphereFace(scale=SCALE, margin=1.5),
    "ArcFace": ArcFace(scale=SCALE, margin=0.3),
    "LM-Softmax (mean)": LMSoftmax(scale=SCALE),
    "LM-Softmax (lse)": LMSoftmax(scale=SCALE, reduction="lse"),
    "R_sm": SampleMargin(),
}

CLASSES, DIMENSIONS, FREQUENT = 10, 64, 5000
RATIOS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 100_000)
DECAY = 0.005
IMBALANCED: dict[str, Objective] = {
    "NormFace": NormFace(scale=5.0),
    "CosFace": CosFace(scale=5.0, margin=0.35),
    "LDAM": LDAM(scale=5.0),
    "LM-Softmax": LMSoftmax(scale=5.0),
    "CE": CrossEntropy(),
}
"""Scales and margins of the paper's Table 2; CE with weight decay, without which it has no optimum."""
R_W = 100.0


CODE_DIMENSIONS = range(2, 9)
STARTS, TURNS = 4, 4
"""Random starts of each search, and how often one goes on from the result of the other."""
ALIKE, ABOVE = 1e-3, 1e-7
"""Cosines and values of gamma nearer than these count as equal."""

PARTS = ("losses", "minority", "codes")


def reproduce_limits(
    *,
    parts: Sequence[str] = PARTS,
    largest: int = 32,
    out: str = "results",
    jobs: int = 1,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Compute the rows that limits.json in `out` lacks, draw the figure, and return the path of the record.

    Args:
        parts: which of the three tables to compute.
        largest: largest number of classes of the softmax codes.
        out: directory for the record and the figure.
        jobs: number of processes.
        report: called with a line of text for each row that is finished and saved.
    """
    path = Path(out) / "limits.json"
    record = read_limits(path)
    for part in parts:
        rows = record.setdefault(part, {})
        missing = [(key, compute) for key, compute in cells(part, largest) if key not in rows]
        for key, row in _computed(missing, jobs):
            rows[key] = row | {"commit": commit()}
            write_record(path, record | {"config": experiment_settings()} | stamp(seconds=row["cpu_seconds"]))
            report(f"{part}: {key}")
    if minority := list(record.get("minority", {}).values()):
        figure = Path(out) / "minority_collapse.png"
        draw_minority_collapse(minority, figure, trained_rows(Path(out) / "table2"))
    return path


def _computed(missing: Sequence[Job], jobs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows as they are finished; with several jobs, each in a process of its own."""
    if jobs == 1:
        yield from ((key, timed(compute)) for key, compute in missing)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        keys = {pool.submit(timed, compute): key for key, compute in missing}
        for future in as_completed(keys):
            yield keys[future], future.result()


def timed(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A row with the CPU seconds it took."""
    start = time.process_time()
    return compute() | {"cpu_seconds": round(time.process_time() - start, 2)}


def trained_rows(folder: Path) -> list[dict[str, Any]]:
    """Class margins of the finished rows of Table 2 with a ratio of 100, CIFAR-10, lambda = 0 and 10.

    The free features have step imbalance: five classes rarer by the ratio. Long tails are shown for lack of
    step rows, and `shape` tells them apart.
    """
    found = []
    for imbalance in ("step:100", "long_tailed:100"):
        table = table2.table(dataset="cifar10", imbalance=imbalance, preset="laptop", out=str(folder))
        for key, record in read_rows(table.rows, folder).items():
            name, _, strength = key.removeprefix(table.prefix).rpartition("-")
            loss = {table2.loss_name(loss): loss for loss in IMBALANCED}.get(name)
            margin = record.get("metrics", {}).get("class_margin_deg")
            if loss is not None and strength in ("0", "10") and margin is not None:
                shape = imbalance.removesuffix(":100")
                found.append(
                    {
                        "loss": loss,
                        "ratio": 100,
                        "R_w": strength == "10",
                        "class_margin_deg": margin,
                        "shape": shape,
                    }
                )
    return found


def read_limits(path: Path) -> dict[str, Any]:
    """The rows of a record by part and key; none if there is no such file."""
    if not path.is_file():
        return {}
    with reading(path, "Delete it and compute its rows again."):
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = {part: dict(found[part]) for part in PARTS if part in found}
        for row in rows.get("minority", {}).values():
            numbers = ("ratio", "rare_deg", "rare_means_deg", "gradient")
            check_list(", ".join(numbers), [row[name] for name in numbers], len(numbers), low=0)
            kinds = [type(row[name]) for name in ("loss", "R_w", "merged")]
            if kinds != [str, bool, list]:
                raise ValueError("loss, R_w and merged of a row must be a text, a truth value and a list")
        return rows


def experiment_settings() -> dict[str, Any]:
    """Every choice behind the tables."""
    return {
        "losses": {"scale": SCALE, "sizes": SIZES},
        "minority": {
            "classes": CLASSES,
            "dimensions": DIMENSIONS,
            "counts": f"{FREQUENT} of five classes, {FREQUENT} / ratio of the others",
            "weight decay of CE": DECAY,
            "weight of R_w": R_W,
        },
        "codes": {"random starts": STARTS, "time limit": None},
        "seed": 0,
    }


def cells(part: str, largest: int) -> Iterator[Job]:
    """The rows of a part; softmax codes for up to `largest` classes."""
    if part == "losses":
        for k, d in SIZES:
            for name in LOSSES:
                yield f"{name} {k} {d}", partial(loss_row, name, k, d)
    elif part == "minority":
        for ratio in RATIOS:
            for name in IMBALANCED:
                for centered in (False, True):
                    yield f"{name} {ratio} {centered}", partial(minority_row, name, ratio, centered)
    else:
        for k in range(3, largest + 1):
            for d in CODE_DIMENSIONS:
                yield f"{k} {d}", partial(code_row, k, d)


def loss_row(name: str, k: int, d: int) -> dict[str, Any]:
    """The optimum of a loss for balanced classes, next to the Tammes angle."""
    found = _quietly(LOSSES[name], [1.0] * k, d)
    return {
        "loss": name,
        "k": k,
        "d": d,
        "class_margin_deg": math.degrees(found.class_margin),
        "tammes_deg": math.degrees(pack(k, d).angle),
        "gamma_min": float(gamma_min(found.features, found.points, found.labels)),
        "merged": found.merged,
        "gradient": found.gradient,
    }


def minority_row(name: str, ratio: int, centered: bool) -> dict[str, Any]:
    """The optimum of a loss when half of the classes are rarer by `ratio`, with or without R_w."""
    objective = IMBALANCED[name] + R_W * ZeroCentroid() if centered else IMBALANCED[name]
    half = CLASSES // 2
    counts = [float(FREQUENT)] * half + [FREQUENT / ratio] * half
    found = _quietly(objective, counts, DIMENSIONS, weight_decay=DECAY if name == "CE" else None)
    return {
        "loss": name,
        "ratio": ratio,
        "R_w": centered,
        "class_margin_deg": math.degrees(found.class_margin),
        "rare_deg": math.degrees(float(class_margin(found.points[half:]))),
        "frequent_deg": math.degrees(float(class_margin(found.points[:half]))),
        "rare_means_deg": math.degrees(float(class_margin(found.features[half:]))),
        "frequent_means_deg": math.degrees(float(class_margin(found.features[:half]))),
        "merged": found.merged,
        "gradient": found.gradient,
    }


def code_row(k: int, d: int) -> dict[str, Any]:
    """A softmax code and a packing, found apart; then each goes on from a better result of the other."""
    how = {"restarts": STARTS, "time_limit": None}
    packing, code = pack(k, d, **how), softmax_code(k, d, **how)
    row: dict[str, Any] = {"k": k, "d": d, "packing_alone": packing.gamma, "softmax_alone": code.gamma}
    for _ in range(TURNS):
        if code.gamma < packing.gamma - ABOVE:
            code = softmax_code(k, d, start=packing.points, **how)
        elif code.gamma > packing.gamma + ABOVE:  # then the bisectors are a better packing (erratum 1)
            packing = pack(k, d, start=normalize(code.weight + code.features), **how)
    return row | {
        "packing_gamma": packing.gamma,
        "softmax_gamma": code.gamma,
        "packing_deg": math.degrees(packing.angle),
        "softmax_deg": math.degrees(float(class_margin(code.weight))),
        "features_off_deg": math.degrees(float(angle(code.features, code.weight).max())),
        "cosines_off": _cosine_gap(packing.points, code.weight),
        "rattlers": len(packing.rattlers),
        "orthogonal_parts": orthogonal_parts(code.weight),
    }


def _cosine_gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """How far the sorted cosines of two codes differ; 0 if they are one code up to an isometry."""
    k = len(a)
    rows, columns = torch.triu_indices(k, k, 1)
    first, second = ((points @ points.T)[rows, columns].sort().values for points in (a, b))
    return float((first - second).abs().max())


def orthogonal_parts(weight: torch.Tensor) -> list[int]:
    """Sizes of the parts of a code that are orthogonal to each other, to `ALIKE`, largest first."""
    met = weight @ weight.T
    reach = (met.abs() > ALIKE).to(met.dtype)
    for _ in range(len(weight).bit_length()):
        reach = ((reach @ reach) > 0).to(met.dtype)
    parts = {tuple(row.nonzero().flatten().tolist()) for row in reach}
    return sorted(map(len, parts), reverse=True)


def _quietly(objective: Objective, counts: list[float], d: int, **options: Any) -> Any:
    """`free_features` without warnings; the gradient shows what has not converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return free_features(objective, counts, d, **options)
