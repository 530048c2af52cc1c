"""The figures of the paper's visual classification, from the records of Tables 1 and 2.

Paper: Fig. 1 (norms of prototypes stay within a factor 1.3 of each other under CE), Fig. 2 (fixed against
learned prototypes), Figs. 4-6 and 9-11 (histograms of similarities and sample margins), Figs. 7, 8 and 12-16
(the same with and without R_w on imbalanced classes).
Run: tammes reproduce figures
     tammes reproduce table2 --figures
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tammes.lab.recipes import table1, table2
from tammes.lab.recipes.row_records import read_rows
from tammes.lab.recipes.table import Preset, Table
from tammes.lab.report.scale_figure import draw_margin_and_accuracy
from tammes.lab.report.training_figures import draw_histograms, draw_measures, draw_norm_ratios

DRAW = {"measures": draw_measures, "histograms": draw_histograms}


class Figure(NamedTuple):
    """A picture of some rows of Table 1, on one data set."""

    name: str
    title: str
    kind: Literal["measures", "histograms"]
    rows: tuple[str, ...]


def _with_r_sm(plain: str) -> tuple[str, ...]:
    return tuple(plain + end for end in table1.R_SM)


PAPER_FIGURES = (
    Figure(
        "fixed",
        "fixed and learned prototypes (as in Fig. 2)",
        "measures",
        ("normface-s10", "normface-s10-fixed"),
    ),
    Figure(
        "cosface-s64", "with and without R_sm (as in Figs. 4, 9)", "histograms", _with_r_sm("cosface-s64")
    ),
    Figure(
        "lmsoftmax",
        "LM-Softmax (as in Figs. 5, 6)",
        "histograms",
        tuple(f"lmsoftmax-s{s}" for s in table1.LM_SCALES),
    ),
    Figure("arcface-s20", "with and without R_sm (as in Fig. 10)", "histograms", _with_r_sm("arcface-s20")),
    Figure("normface-s64", "with and without R_sm (as in Fig. 11)", "histograms", _with_r_sm("normface-s64")),
)


def table1_figures(table: Table) -> list[Figure]:
    """The paper's figures, and the training curves of every run: one figure per block of the table."""
    blocks: dict[str, list[str]] = {}
    for row in table.rows:
        if row.block != table1.FIXED_BLOCK:  # in the paper's figures already
            blocks.setdefault(row.block, []).append(row.key.removeprefix(table.prefix))
    curves = [
        Figure(f"curves-{names[0].partition('-')[0]}", block, "measures", tuple(names))
        for block, names in blocks.items()
    ]
    return [*PAPER_FIGURES, *curves]


class Drawn(NamedTuple):
    """Files written, and names of the figures that have no finished rows."""

    files: list[Path]
    missing: list[str]


def draw_table1(*, preset: Preset, results: str, out: Path) -> Drawn:
    """Draw the figures of every data set of Table 1 that has finished rows in `results`."""
    drawn, cross_entropy = Drawn([], []), dict[str, Any]()
    for dataset, name in table1.NAMES.items():
        table = table1.table(dataset=dataset, preset=preset, out=results)
        records = _finished(table)
        if records:
            _draw_dataset(table, name, records, out, drawn)
        if f"{table.prefix}ce" in records:
            cross_entropy[name] = records[f"{table.prefix}ce"]
    if not drawn.files:
        raise ValueError(
            f"There is no finished row of preset {preset} in {results}. Train some: tammes reproduce table1"
        )
    if cross_entropy:
        drawn.files.append(out / f"{preset}-norm-ratios.png")
        draw_norm_ratios(cross_entropy, "Norms of prototypes under CE (Fig. 1)", drawn.files[-1])
    return drawn


def _finished(table: Table) -> dict[str, dict[str, Any]]:
    """The records of rows that are finished and did not diverge, by key."""
    records = read_rows(table.rows, Path(table.out))
    return {key: record for key, record in records.items() if "metrics" in record}


def _draw_dataset(
    table: Table, name: str, records: Mapping[str, dict[str, Any]], out: Path, drawn: Drawn
) -> None:
    """Add to `drawn` the figures of one data set."""
    preset = table.name.split()[-1]
    drawn.files.append(out / f"{table.prefix}scales.png")
    title = f"{name}, {preset}: class margin and accuracy against s"
    draw_margin_and_accuracy(table.rows, records, title, drawn.files[-1])
    labels = {row.key: row.label for row in table.rows}
    for figure in table1_figures(table):
        keys = [table.prefix + row for row in figure.rows]
        shown = {labels[key]: records[key] for key in keys if key in records}
        path = out / f"{table.prefix}{figure.name}.png"
        if shown:
            DRAW[figure.kind](shown, f"{name}: {figure.title}", path)
            drawn.files.append(path)
        else:
            drawn.missing.append(path.stem)


def draw_table2(table: Table) -> list[Path]:
    """Draw Figs. 7, 8 and 12-16 next to the records, as far as their rows are finished."""
    out, records = Path(table.out), _finished(table)
    where, drawn = table.title.removeprefix("Table 2 on ").rpartition(", ")[0], list[Path]()
    if curves := _present(_with_and_without(table.prefix), records):
        drawn.append(out / f"{table.prefix}curves.png")
        draw_measures(curves, f"{where}: with and without R_w", drawn[-1])
    for loss in table2.LOSSES:
        found = _present(_over_lambda(table.prefix, loss), records)
        if found := {label: record for label, record in found.items() if record["histograms"]}:
            drawn.append(out / f"{table.prefix}{table2.loss_name(loss)}-histograms.png")
            draw_histograms(found, f"{loss} on {where}", drawn[-1])
    return drawn


def _with_and_without(prefix: str) -> dict[str, str]:
    """Labels and keys of Fig. 7: each loss without R_w and at one lambda."""
    return {
        f"{loss} (lambda={strength})": f"{prefix}{table2.loss_name(loss)}-{strength}"
        for loss in table2.LOSSES
        for strength in (0, table2.MAIN_LAMBDA)
    }


def _over_lambda(prefix: str, loss: str) -> dict[str, str]:
    """Labels and keys of Figs. 8 and 12-16: one loss for every lambda."""
    return {
        f"lambda = {strength}": f"{prefix}{table2.loss_name(loss)}-{strength}" for strength in table2.LAMBDAS
    }


def _present(keys: Mapping[str, str], records: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {label: records[key] for label, key in keys.items() if key in records}
