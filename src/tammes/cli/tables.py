"""Tables that commands print."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tammes.metrics.classification import Evaluation
from tammes.report.tables import Cell, Grid, to_terminal

GROUPS = ("many", "medium", "few")
METRICS = ("acc %", "m_cls deg", "at most", "m_samp", "at most", "gamma_min")


def print_result(result: dict[str, Any]) -> None:
    """One run as a table of one row; where classes are skewed, their counts and what goes with them."""
    print_runs([(result["data"], result)])
    metrics = result["metrics"]
    if "mean_class_accuracy" in metrics:
        shown = [str(count) for count in result["class_counts"][:20]]
        more = ", ..." if len(result["class_counts"]) > len(shown) else ""
        groups = [f"{name} {100 * metrics[name]:.2f} %" for name in GROUPS if name in metrics]
        print(f"Training images by class: {', '.join(shown)}{more}")
        print(f"Accuracy of classes with many (over 100), medium, few (under 20) images: {', '.join(groups)}")
        print(f"Expected calibration error: {100 * metrics['ece']:.2f} %")


def print_runs(rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Runs side by side: accuracy, class margin and its maximum, sample margin and its ceiling."""
    by_data: dict[str, list[list[Cell]]] = {}
    for name, result in rows:
        objective, seconds = result["config"]["objective"], f"{result['seconds']:.0f}"
        texts = (name, objective, *metrics_row(result["metrics"]), seconds)
        by_data.setdefault(result["data"], []).append([Cell(text) for text in texts])
    apart = len(by_data) > 1
    for data, lines in by_data.items():
        columns = ("run", "objective", *METRICS, "s")
        print_grid(Grid(f"on {data}" if apart else "", columns, [("", lines)], words=2))
    if apart:
        print("Runs on different data are kept apart: their numbers do not compare.")


def print_grid(grid: Grid) -> None:
    """A table on standard output."""
    _console().print(to_terminal(grid))


def metrics_row(metrics: dict[str, Any]) -> list[str]:
    """The numbers of an evaluation, in the order of the columns."""
    return [
        f"{100 * metrics['accuracy']:.2f}",
        f"{metrics['class_margin_deg']:.2f}",
        f"{metrics['class_margin_maximum_deg']:.2f}",
        f"{metrics['sample_margin']:.4f}",
        f"{metrics['sample_margin_ceiling']:.4f}",
        f"{metrics['gamma_min']:.4f}",
    ]


def print_evaluation(evaluation: Evaluation, classes: Sequence[str], worst: int) -> None:
    """The numbers of an evaluation and the classes it does worst on."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in METRICS:
        table.add_column(column, justify="right")
    table.add_row(*metrics_row(evaluation.numbers()))
    _console().print(table)
    rows = sorted((row for row in evaluation.per_class(classes) if row["accuracy"] is not None), key=_badness)
    if not worst or not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold", title="worst classes", title_justify="left")
    for column in ("class", "acc %", "m_samp", "gamma", "nearest class", "deg"):
        table.add_column(column, justify="left" if "class" in column else "right")
    for row in rows[:worst]:
        table.add_row(
            row["class"],
            f"{100 * row['accuracy']:.2f}",
            f"{row['sample_margin']:.4f}",
            f"{row['gamma']:.4f}",
            row["nearest_class"],
            f"{row['nearest_angle_deg']:.2f}",
        )
    _console().print(table)


def _badness(row: dict[str, Any]) -> tuple[float, float]:
    return (row["accuracy"], row["gamma"])


def _console() -> Console:
    """As wide as the terminal; wide enough for every table where there is none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)
