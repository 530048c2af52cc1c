"""Train the rows of a table, resumably and in parallel, with first stages before second stages."""

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tammes._common import checks
from tammes.lab.recipes.row_records import read_record, read_rows, record_path, write_row
from tammes.lab.recipes.table import Row
from tammes.lab.recipes.worker_processes import StopSink, in_processes
from tammes.lab.training.config import resolve
from tammes.lab.training.loop import train
from tammes.lab.training.monitor import NonFiniteLossError, Record, RunInterruptedError, Sink
from tammes.lab.training.progress import Terminal, epoch_line
from tammes.lab.training.run_folder import RunFolder


def run_rows(rows: Sequence[Row], out: Path, *, runs: Path, jobs: int = 1) -> None:
    """Train the rows without a record: each in `runs/KEY`, its record in `out/KEY.json`.

    It can be interrupted and called again with the same result. Finished rows are not trained again,
    except for first stages whose run folder is gone while a second stage still needs their weights.

    Args:
        rows: rows with distinct keys, in any order.
        out: directory of the records.
        runs: directory of the run folders, with their checkpoints.
        jobs: rows to train in parallel, in processes that share the threads.
    """
    checks.at_least("jobs", jobs, 1)
    missing = _missing(rows, out, runs)
    first = [row for row in missing if row.config.start is None]
    second = [row for row in missing if row.config.start is not None]
    try:
        for stage in (first, second):
            _run_stage(stage, out, runs, jobs)
    except RunInterruptedError as error:
        raise RunInterruptedError("Interrupted. Progress is saved; rerun the command to continue.") from error


def _missing(rows: Sequence[Row], out: Path, runs: Path) -> list[Row]:
    """The rows without a record, and the first stages they start from whose run folder is gone."""
    finished = read_rows(rows, out)
    starts = {row.config.start for row in rows if row.key not in finished}

    def gone(row: Row) -> bool:
        path = runs / row.key
        lost = str(path) in starts and RunFolder(path).result is None
        return lost and "diverged" not in finished[row.key]

    return [row for row in rows if row.key not in finished or gone(row)]


def _run_stage(rows: Sequence[Row], out: Path, runs: Path, jobs: int) -> None:
    """Train rows that do not depend on each other."""
    if jobs == 1:
        for row in rows:
            with Terminal(row.label, titled=True) as terminal:
                run_row(row, out, runs, [terminal])
    elif rows:
        in_processes(partial(_run_in_worker, out=out, runs=runs), rows, min(jobs, len(rows)))


def _run_in_worker(row: Row, *, out: Path, runs: Path) -> None:
    """`run_row` in a worker process, with one line per epoch in place of a progress bar."""

    def print_epoch(record: Record) -> None:
        if record["kind"] == "epoch":
            print(f"{row.label}  {epoch_line(record)}", file=sys.stderr, flush=True)

    run_row(row, out, runs, [print_epoch, StopSink()])


def run_row(row: Row, out: Path, runs: Path, sinks: Sequence[Sink] = ()) -> None:
    """Train one row, or resume it, and write its record. A diverging loss is a result too."""
    folder = RunFolder(runs / row.key)
    write_row(row, _train(row, folder, out, sinks), out, folder)


def _train(row: Row, folder: RunFolder, out: Path, sinks: Sequence[Sink]) -> dict[str, Any]:
    reason = _why_start_diverged(row, out)
    if reason is not None:
        return _diverged(row, reason)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Classes are imbalanced")  # on purpose, in these tables
            return train(row.config, folder.path, resume=True, sinks=sinks)
    except NonFiniteLossError as error:
        return _diverged(row, str(error).partition(". ")[0])


def _diverged(row: Row, reason: str) -> dict[str, Any]:
    return {"config": resolve(row.config).settings(), "seed": row.config.seed, "diverged": reason}


def _why_start_diverged(row: Row, out: Path) -> str | None:
    """Why the first stage that `row` starts from diverged; None if it did not."""
    if row.config.start is None:
        return None
    path = record_path(out, Path(row.config.start).name)
    return read_record(path).get("diverged") if path.is_file() else None
