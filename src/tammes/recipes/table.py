"""The rows of a table: each is a config, trained where it is missing and kept as one small file."""

import dataclasses
import fnmatch
import json
import math
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tammes import checks
from tammes.provenance import write_json
from tammes.recipes.processes import Leash, in_processes
from tammes.training.config import Config
from tammes.training.folder import RunFolder
from tammes.training.loop import train
from tammes.training.progress import Terminal, epoch_line
from tammes.training.sinks import Record, Sink, read_log
from tammes.training.watch import NonFiniteLossError, RunInterruptedError

PLACES = (
    "data_root",
    "download",
    "max_unreadable",
    "device",
    "workers",
    "log_every",
    "checkpoint_seconds",
    "tensorboard",
)
"""Settings of where and how a run works, which leave its numbers alone."""

HISTOGRAMS = {"similarity": (-1.0, 1.0), "sample_margin": (-2.0, 2.0)}
"""Arrays of `margins.npz` that a record keeps as histograms, and the range of their values."""

BIN = 0.01


@dataclass(frozen=True)
class Row:
    """One row of a table, or one seed of it.

    Attributes:
        key: name of its files.
        label: what the table calls it; rows of one block and label are seeds of one line.
        config: the run behind it.
        paper: the paper's numbers as printed, under the names of our metrics.
        block: heading of the lines it stands with.
        versus: key of the row that it extends and is compared with.
    """

    key: str
    label: str
    config: Config
    paper: dict[str, float] = field(default_factory=dict)
    block: str = ""
    versus: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", self.key):
            raise ValueError(f"A key is letters, digits and . _ + -, got {self.key!r}.")


def seeded(rows: Sequence[Row], seeds: int) -> list[Row]:
    """Each row with seeds 0 to `seeds` - 1."""
    checks.at_least("seeds", seeds, 1)
    return [_with_seed(row, seed) for row in rows for seed in range(seeds)]


def _with_seed(row: Row, seed: int) -> Row:
    """A later stage starts from the first one of the same seed."""
    end = f"-seed{seed}" if seed else ""
    start = row.config.start and row.config.start + end
    config = dataclasses.replace(row.config, seed=seed, start=start)
    return dataclasses.replace(row, key=row.key + end, config=config)


def select(rows: Sequence[Row], names: Sequence[str], prefix: str = "") -> list[Row]:
    """The rows whose keys, after `prefix`, match the `names`, in their order; all where none is given.

    A name may have the wildcards of file names, as in "cosface-*".
    """
    if not names:
        return list(rows)
    known = {row.key.removeprefix(prefix): row for row in rows}
    chosen: dict[str, Row] = {}
    for name in names:
        matches = [key for key in known if fnmatch.fnmatchcase(key, name)]
        if not matches:
            raise ValueError(f"There is no row {name!r}. {checks.nearest(name, known)}")
        chosen |= {key: known[key] for key in matches}
    return list(chosen.values())


def run_rows(rows: Sequence[Row], out: Path, *, runs: Path, jobs: int = 1) -> None:
    """Train what is missing: each row in `runs/<key>`, its record to `out/<key>.json`.

    Killed at any moment and repeated it comes to the same end. Finished rows are kept as they are, except
    those that a missing one starts from and whose run is gone: a record has no weights.

    Args:
        rows: of distinct keys, in any order.
        out: folder of the records.
        runs: folder of the runs, with checkpoints.
        jobs: so many rows are trained at the same time, in processes that share the threads.
    """
    checks.at_least("jobs", jobs, 1)
    missing = _missing(rows, out, runs)
    first = [row for row in missing if row.config.start is None]
    later = [row for row in missing if row.config.start is not None]
    try:
        for stage in (first, later):
            _run_stage(stage, out, runs, jobs)
    except RunInterruptedError as error:
        raise RunInterruptedError(
            "Stopped; finished rows are kept, begun ones too. Repeat the command to go on."
        ) from error


def _missing(rows: Sequence[Row], out: Path, runs: Path) -> list[Row]:
    """The rows without a record, and those that one of these starts from and that have no run."""
    there = read_rows(rows, out)
    starts = {row.config.start for row in rows if row.key not in there}

    def gone(row: Row) -> bool:
        path = runs / row.key
        return str(path) in starts and RunFolder(path).result is None and "diverged" not in there[row.key]

    return [row for row in rows if row.key not in there or gone(row)]


def _run_stage(rows: Sequence[Row], out: Path, runs: Path, jobs: int) -> None:
    """Train rows of which none starts from another."""
    if jobs == 1:
        for row in rows:
            with Terminal(row.label) as terminal:
                run_row(row, out, runs, [terminal])
    elif rows:
        in_processes(partial(_run_apart, out=out, runs=runs), rows, min(jobs, len(rows)))


def _run_apart(row: Row, *, out: Path, runs: Path) -> None:
    """`run_row` in a process of its own, which says a line an epoch."""

    def say(record: Record) -> None:
        if record["kind"] == "epoch":
            print(epoch_line(row.label, record), file=sys.stderr, flush=True)

    run_row(row, out, runs, [say, Leash()])


def run_row(row: Row, out: Path, runs: Path, sinks: Sequence[Sink] = ()) -> None:
    """Train one row, or go on with it, and write its record; a loss that diverges is a result too.

    So is a start that diverged. That classes are skewed is what a row is about, and needs no warning.
    """
    folder, reason = RunFolder(runs / row.key), _why_start_diverged(row, out)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Classes are skewed")
            result = (
                _diverged(row, reason) if reason else train(row.config, folder.path, resume=True, sinks=sinks)
            )
    except NonFiniteLossError as error:
        result = _diverged(row, str(error).partition(". ")[0])
    content = result | {"config": _deciding(result["config"])}
    write_json(
        out / f"{row.key}.json", content | {"curves": curves(folder), "histograms": histograms(folder)}
    )


def _diverged(row: Row, reason: str) -> dict[str, Any]:
    return {"config": dataclasses.asdict(row.config), "seed": row.config.seed, "diverged": reason}


def _why_start_diverged(row: Row, out: Path) -> str | None:
    """What the record of the run that `row` starts from says on that; None where all went well."""
    if row.config.start is None:
        return None
    path = out / f"{Path(row.config.start).name}.json"
    return json.loads(path.read_text(encoding="utf-8")).get("diverged") if path.is_file() else None


def read_rows(rows: Sequence[Row], out: Path) -> dict[str, dict[str, Any]]:
    """The records in `out` of those rows that are finished, under their keys; another run's is refused."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        path = out / f"{row.key}.json"
        if path.is_file():
            found[row.key] = _read(path, row)
    return found


def _read(path: Path, row: Row) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        stored = dict(record["config"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no record of a row: {error}. Remove it, and train the row.") from error
    wanted = json.loads(json.dumps(_deciding(dataclasses.asdict(row.config))))
    defaults = {f.name: f.default for f in dataclasses.fields(Config)}
    defaults |= {name: list(value) for name, value in defaults.items() if isinstance(value, tuple)}
    other = [
        f"{name}={stored.get(name, defaults[name])!r}, not {value!r}"
        for name, value in wanted.items()
        if stored.get(name, defaults[name]) != value
    ]
    if other:
        raise ValueError(
            f"{path} holds a row with {'; '.join(other)}. Choose another folder with --out, or remove it."
        )
    return record


def _deciding(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide a row's numbers; of paths, to the data or a start, the last part."""
    kept = {name: value for name, value in config.items() if name not in PLACES}
    start = config.get("start")
    return kept | {"data": Path(config["data"]).name, "start": start and Path(start).name}


def curves(folder: RunFolder) -> dict[str, list[Any]]:
    """Every number of the evaluations of a run, epoch by epoch."""
    epochs = [record for record in read_log(folder.log) if record["kind"] == "epoch"]
    names = [name for name in (epochs[-1] if epochs else {}) if name not in ("kind", "step")]
    return {name: [_finite(record.get(name)) for record in epochs] for name in names}


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def histograms(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """How often values of the test samples fall into bins of width 0.01; empty ends are left out."""
    path = folder.path / "margins.npz"
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as arrays:
        return {name: _histogram(arrays[name], *ends) for name, ends in HISTOGRAMS.items() if name in arrays}


def _histogram(values: np.ndarray, low: float, high: float) -> dict[str, Any]:
    bins = round((high - low) / BIN)
    counts, _ = np.histogram(values.clip(low, high), bins, (low, high))
    (full,) = counts.nonzero()
    first, last = (int(full[0]), int(full[-1]) + 1) if len(full) else (0, 0)
    return {"low": round(low + first * BIN, 10), "width": BIN, "counts": counts[first:last].tolist()}
