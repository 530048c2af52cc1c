"""Records of trained rows: one small JSON file each, with config, metrics, curves and histograms."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tammes._common.checks import reading
from tammes.lab.recipes.table import Row
from tammes.lab.record_stamp import write_record
from tammes.lab.training.config import ConfigFields, resolve
from tammes.lab.training.monitor import read_log
from tammes.lab.training.record_checks import check_row_record
from tammes.lab.training.run_folder import RunFolder

PLACES = (
    "data_root",
    "download",
    "max_unreadable",
    "device",
    "workers",
    "log_every",
    "checkpoint_seconds",
    "track",
)
"""Settings of paths, logging and the machine, which do not change the numbers of a run."""

BEFORE = {"augment_style": "fast", "frozen_start": 0.0}
"""Values for records older than a setting whose default now depends on the data."""

HISTOGRAMS = {"similarity": (-1.0, 1.0), "sample_margin": (-2.0, 2.0)}
"""Arrays of `margins.npz` that a record keeps as histograms, and the range of their values."""

BIN_WIDTH = 0.01
DAMAGED = "Delete it and train the row again."


def record_path(out: Path, key: str) -> Path:
    """Path of the record of the row `key`."""
    return out / f"{key}.json"


def write_row(row: Row, result: Mapping[str, Any], out: Path, folder: RunFolder) -> None:
    """Write the record of a row from the result and the files of its run."""
    content = {name: value for name, value in result.items() if name != "asked"}
    content |= {"config": _deciding(result["config"])}
    content |= {"curves": curves(folder), "histograms": histograms(folder)}
    write_record(record_path(out, row.key), content)


def read_rows(rows: Sequence[Row], out: Path) -> dict[str, dict[str, Any]]:
    """The records in `out` of the finished rows, by key. Raises if a record is of a different run."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        path = record_path(out, row.key)
        if path.is_file():
            found[row.key] = _read(path, row)
    return found


def read_record(path: Path) -> dict[str, Any]:
    """The record in a file."""
    with reading(path, DAMAGED):
        return dict(json.loads(path.read_text(encoding="utf-8")))


def _read(path: Path, row: Row) -> dict[str, Any]:
    record = read_record(path)
    with reading(path, DAMAGED):
        stored = dict(record["config"])
    check_row_record(path, record, DAMAGED)
    wanted = json.loads(json.dumps(_deciding(resolve(row.config).settings())))
    defaults = {f.name: f.default for f in dataclasses.fields(ConfigFields)}
    defaults |= {name: list(value) for name, value in defaults.items() if isinstance(value, tuple)}
    defaults |= BEFORE
    if row.config.autocast == "auto" and stored.get("autocast") in ("none", "bf16"):
        wanted["autocast"] = stored["autocast"]  # depends on the processor it was trained on
    other = [
        f"{name}={stored.get(name, defaults[name])!r}, not {value!r}"
        for name, value in wanted.items()
        if stored.get(name, defaults[name]) != value
    ]
    if other:
        raise ValueError(
            f"{path} holds a row with {'; '.join(other)}. Choose another directory with --out, or delete it."
        )
    return record


def _deciding(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that determine a row's numbers. Paths to data or a first stage lose their directory."""
    kept = {name: value for name, value in config.items() if name not in PLACES}
    start = config.get("start")
    return kept | {"data": Path(config["data"]).name, "start": start and Path(start).name}


def curves(folder: RunFolder) -> dict[str, list[Any]]:
    """Every number that the run logged at its evaluations, one value per epoch."""
    epochs = [record for record in read_log(folder.log) if record["kind"] == "epoch"]
    names = [name for name in (epochs[-1] if epochs else {}) if name not in ("kind", "step")]
    return {name: [_finite(record.get(name)) for record in epochs] for name in names}


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def histograms(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Histograms over the test samples with bins of `BIN_WIDTH`, trimmed of empty bins at both ends."""
    path = folder.path / "margins.npz"
    if not path.is_file():
        return {}
    arrays = folder.arrays
    return {name: _histogram(arrays[name], *ends) for name, ends in HISTOGRAMS.items() if name in arrays}


def _histogram(values: np.ndarray, low: float, high: float) -> dict[str, Any]:
    bins = round((high - low) / BIN_WIDTH)
    counts, _ = np.histogram(values.clip(low, high), bins, (low, high))
    (full,) = counts.nonzero()
    first, last = (int(full[0]), int(full[-1]) + 1) if len(full) else (0, 0)
    low = round(low + first * BIN_WIDTH, 10)  # avoid binary fractions such as 0.30000000000000004
    return {"low": low, "width": BIN_WIDTH, "counts": counts[first:last].tolist()}
