"""Train a row again and check that it agrees with its record, within the noise between seeds.

The noise of a metric is its standard deviation over the seeds of the row or, if the row has only one seed,
the pooled deviation over the seeds of the table's other rows. Two runs of one row differ by less than
1.96 sqrt(2) such deviations 19 times out of 20. If no row has a second seed, the noise is unknown and only
equal numbers agree.
"""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import variance
from typing import Any, NamedTuple

from tammes.lab.recipes.row_records import read_rows
from tammes.lab.recipes.row_training import run_row
from tammes.lab.recipes.table import MOST_SEEDS, Row, Table, seeded, select
from tammes.lab.report.tables import Records
from tammes.lab.training.progress import Terminal

TWO_RUNS = 1.96 * math.sqrt(2)
"""95 % quantile of the difference of two runs, in standard deviations of one."""


class Agreement(NamedTuple):
    """A metric in the record and in the new run, and how far apart two runs may be; None if unknown."""

    metric: str
    stored: float
    now: float
    allowed: float | None

    @property
    def agrees(self) -> bool | None:
        """None if the numbers differ and the noise is unknown."""
        if self.stored == self.now:
            return True
        return None if self.allowed is None else abs(self.now - self.stored) <= self.allowed


def check(table: Table, name: str) -> list[Agreement]:
    """Train the row called `name` again and compare each column with its record.

    The new run is made in a folder `check` below `table.runs`, and is deleted afterwards.
    """
    row, *_ = select(seeded(table.rows, MOST_SEEDS), [name], table.prefix)
    stored = read_rows([row], Path(table.out)).get(row.key)
    if stored is None or "metrics" not in stored:
        raise ValueError(f"There is no finished record of {row.key} in {table.out} to check. Train it first.")
    new = _train_again(row, Path(table.runs) / "check")
    if "metrics" not in new:
        raise ValueError(f"{row.key} diverged this time: {new['diverged']}. Its record did not.")
    records = read_rows(seeded(table.rows, MOST_SEEDS), Path(table.out))
    metrics = [column.metric for column in table.columns]
    common = [m for m in metrics if isinstance(stored["metrics"].get(m), int | float)]
    return [
        Agreement(m, stored["metrics"][m], new["metrics"][m], allowed(row, table.rows, records, m))
        for m in common
    ]


def _train_again(row: Row, folder: Path) -> dict[str, Any]:
    with Terminal(f"{row.label}, again", titled=True) as terminal:
        run_row(row, folder, folder, [terminal])
    record = read_rows([row], folder)[row.key]
    shutil.rmtree(folder)
    return record


def allowed(row: Row, rows: Sequence[Row], records: Records, metric: str) -> float | None:
    """How far apart two runs of `row` are, 19 times out of 20; None if no row of `rows` has a second seed."""
    by_line = {(other.block, other.label): _values(other, records, metric) for other in rows}
    repeated = {line: values for line, values in by_line.items() if len(values) > 1}
    if (row.block, row.label) in repeated:
        return TWO_RUNS * math.sqrt(variance(repeated[row.block, row.label]))
    degrees_of_freedom = sum(len(values) - 1 for values in repeated.values())
    if not degrees_of_freedom:
        return None
    total = sum((len(values) - 1) * variance(values) for values in repeated.values())
    return TWO_RUNS * math.sqrt(total / degrees_of_freedom)


def _values(row: Row, records: Records, metric: str) -> list[float]:
    found = [
        (records.get(each.key, {}).get("metrics") or {}).get(metric) for each in seeded([row], MOST_SEEDS)
    ]
    return [value for value in found if value is not None]
