"""Choosing Table 2's lambda on held-out training images, and what the test images would have chosen.

The paper's starred rows mostly take, for each column, the lambda with the best test accuracy (erratum 13).
Run: tammes reproduce table2 --choose
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tammes.lab.recipes.row_records import read_rows
from tammes.lab.recipes.row_training import run_rows
from tammes.lab.recipes.table import Row, Table, printed_table, select
from tammes.lab.recipes.table2 import LAMBDAS, LOSSES, loss_name
from tammes.lab.report.tables import Cell, Grid, Records

HELD_OUT = 0.2
HELD_OUT_METRIC = "mean_class_accuracy"
"""Decides on held-out images, where plain accuracy would ignore the rare classes."""


class Choice(NamedTuple):
    """The lambda that held-out images choose for a loss, and the one that the test images would."""

    loss: str
    by_held_out: int
    by_test: int
    complete: bool  # whether every lambda has both runs


def choose(table: Table, *, rows: Sequence[str] = (), jobs: int = 1, train: bool = True) -> Grid:
    """Train the held-out twins of the rows, then lay out which lambda they choose for each loss."""
    out = Path(table.out)
    if train:
        chosen = select(table.rows, rows, table.prefix)
        run_rows(held_out(chosen), out, runs=Path(table.runs), jobs=jobs)
    records = read_rows([*table.rows, *held_out(table.rows)], out)
    return _grid(choices(table.prefix, records), records, table.prefix)


def held_out(rows: Sequence[Row]) -> list[Row]:
    """Each row trained on four fifths of its training images and evaluated on the remaining fifth."""
    return [
        dataclasses.replace(
            row,
            key=f"{row.key}-held-out",
            config=dataclasses.replace(row.config, hold_out=HELD_OUT),
            paper={},
            versus=row.versus and f"{row.versus}-held-out",
        )
        for row in rows
    ]


def choices(prefix: str, records: Records) -> list[Choice]:
    """The best lambda of each loss, among those that were run.

    Args:
        prefix: start of all keys.
        records: records of the rows and of their `held_out` twins, by key.
    """
    found = []
    for loss in LOSSES:
        held = _scores(records, f"{prefix}{loss_name(loss)}-{{}}-held-out", HELD_OUT_METRIC)
        test = _scores(records, f"{prefix}{loss_name(loss)}-{{}}", "accuracy")
        if held and test:
            complete = len(held) == len(test) == len(LAMBDAS)
            best_held, best_test = (max(scores, key=scores.__getitem__) for scores in (held, test))
            found.append(Choice(loss, best_held, best_test, complete))
    return found


def _scores(records: Records, key: str, metric: str) -> dict[int, float]:
    """A metric by lambda, in ascending order so that the smaller lambda wins a tie."""
    found = {strength: records.get(key.format(strength)) for strength in LAMBDAS}
    return {s: r["metrics"][metric] for s, r in found.items() if r and metric in r.get("metrics", {})}


def _grid(choices: Sequence[Choice], records: Records, prefix: str) -> Grid:
    def accuracy(loss: str, strength: int) -> str:
        metrics = records.get(f"{prefix}{loss_name(loss)}-{strength}", {}).get("metrics")
        return "" if metrics is None else f"{100 * metrics['accuracy']:.2f}"

    lines = [
        (
            c.loss if c.complete else f"{c.loss} (of the lambdas run)",
            str(c.by_held_out),
            accuracy(c.loss, c.by_held_out),
            str(c.by_test),
            accuracy(c.loss, c.by_test),
        )
        for c in choices
    ]
    best, total = starred()
    heads = ("", "lambda by held-out", "test acc", "lambda by test", "test acc")
    return Grid(
        "Choosing lambda",
        heads,
        [("", [[Cell(text) for text in line] for line in lines])],
        notes=[f"The paper's starred rows: {best} of {total} have the lambda with the best test accuracy."],
    )


def starred() -> tuple[int, int]:
    """How many of Table 2's starred entries have the best test accuracy over lambda, and of how many.

    >>> starred()
    (35, 40)
    """
    table2, table6 = printed_table("table2"), printed_table("table6")["rows"]
    best = [
        table2["rows"][f"{loss}*"][setting][0] == max(table6[loss][str(s)][setting][0] for s in LAMBDAS if s)
        for loss in LOSSES
        for setting in table2["settings"]
    ]
    return sum(best), len(best)
