"""Tables that commands print."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tammes._common.terminal import printable
from tammes.lab.report.settings import differing_settings, setting
from tammes.lab.report.tables import Cell, Grid, to_terminal
from tammes.metrics.classification import Evaluation
from tammes.metrics.verification import ConfidenceInterval, Verification

GROUPS = ("many", "medium", "few")
METRICS = (
    ("acc %", "accuracy", 100, 2),
    ("mAP %", "mAP", 100, 2),
    ("rank-1 %", "rank1", 100, 2),
    ("rank-5 %", "rank5", 100, 2),
    ("rank-10 %", "rank10", 100, 2),
    ("mINP %", "mINP", 100, 2),
    ("m_cls deg", "class_margin_deg", 1, 2),
    ("at most", "class_margin_maximum_deg", 1, 2),
    ("m_samp", "sample_margin", 1, 4),
    ("at most", "sample_margin_ceiling", 1, 4),
    ("gamma_min", "gamma_min", 1, 4),
)
"""Column heading, metric, factor, and number of digits."""


def print_result(result: dict[str, Any]) -> None:
    """Print the metrics of one run; for imbalanced classes also counts and group accuracies."""
    print_numbers(result["metrics"])
    if result["config"]["imbalance"] or "mean_class_accuracy" in result["metrics"]:
        print(f"Training images by class: {_ends(result['class_counts'])}")
    _print_groups(result["metrics"])


def _ends(counts: Sequence[int]) -> str:
    """All counts, or the first and the last ten."""
    texts = [str(count) for count in counts]
    return ", ".join(texts if len(texts) <= 20 else [*texts[:10], "...", *texts[-10:]])


def _print_groups(metrics: Mapping[str, Any]) -> None:
    """Print the metrics that exist only for imbalanced classes."""
    if "mean_class_accuracy" in metrics:
        groups = [f"{name} {100 * metrics[name]:.2f} %" for name in GROUPS if name in metrics]
        print(
            "Accuracy of classes with many (over 100), medium or few (under 20) training images: "
            f"{', '.join(groups)}"
        )
        print(f"Expected calibration error: {100 * metrics['ece']:.2f} %")


def print_runs(rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Runs side by side: settings that differ, accuracy or mAP, margins and their maxima."""
    by_data: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, result in rows:
        by_data.setdefault(result["data"], []).append((name, result))
    apart = len(by_data) > 1
    for data, some in by_data.items():
        heads, numbers = metrics_rows([result["metrics"] for _, result in some])
        different = differing_settings([result for _, result in some])
        texts = (
            (name, *(setting(result["config"], key) for key in different), *line, f"{result['seconds']:.0f}")
            for (name, result), line in zip(some, numbers, strict=True)
        )
        lines = [[Cell(text) for text in line] for line in texts]
        columns = ("run", *different, *heads, "seconds")
        print_grid(Grid(f"on {data}" if apart else "", columns, [("", lines)], words=1 + len(different)))
    if apart:
        print("Runs on different data are listed separately, because their numbers are not comparable.")


def print_grid(grid: Grid) -> None:
    """Print a table."""
    _console().print(to_terminal(grid))


def metrics_rows(evaluations: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings of the metrics that at least one evaluation has, and one row of numbers per evaluation."""
    shown = [column for column in METRICS if any(column[1] in metrics for metrics in evaluations)]
    lines = [
        [
            f"{factor * metrics[name]:.{digits}f}" if name in metrics else ""
            for _, name, factor, digits in shown
        ]
        for metrics in evaluations
    ]
    return [head for head, *_ in shown], lines


def print_numbers(numbers: Mapping[str, Any]) -> None:
    """Print the metrics of an evaluation."""
    heads, lines = metrics_rows([numbers])
    print_grid(Grid("", heads, [("", [[Cell(text) for text in lines[0]]])], words=0))


def print_evaluation(evaluation: Evaluation, classes: Sequence[str], worst: int) -> None:
    """Print the metrics of an evaluation and the classes with the lowest accuracy."""
    print_numbers(evaluation.numbers())
    _print_groups(evaluation.numbers())
    rows = sorted((row for row in evaluation.per_class(classes) if row["accuracy"] is not None), key=_badness)
    if not worst or not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold", title="worst classes", title_justify="left")
    for column in ("class", "acc %", "m_samp", "gamma", "nearest class", "deg"):
        table.add_column(column, justify="left" if "class" in column else "right")
    for row in rows[:worst]:
        table.add_row(
            Text(printable(row["class"])),
            f"{100 * row['accuracy']:.2f}",
            f"{row['sample_margin']:.4f}",
            f"{row['gamma']:.4f}",
            Text(printable(row["nearest_class"])),
            f"{row['nearest_angle_deg']:.2f}",
        )
    _console().print(table)


NUMBERS = {"accuracy": "accuracy, ten folds", "auc": "area under the curve", "eer": "equal error rate"}


def print_verified(name: str, found: Verification, intervals: Mapping[str, ConfidenceInterval]) -> None:
    """Print the metrics of a pair list in percent, with bootstrap intervals if there are any."""
    lines = []
    for key, value in found.numbers().items():
        if key == "accuracy_error":
            continue
        error = f" ± {100 * found.accuracy_error:.2f}" if key == "accuracy" else ""
        low, high = intervals.get(key, (None, None))
        between = [f"{100 * low:.2f} to {100 * high:.2f}"] if low is not None and high is not None else []
        texts = [
            NUMBERS.get(key) or key.replace("tar_at_", "TAR at FAR "),
            f"{100 * value:.2f}{error}",
            *between,
        ]
        lines.append([Cell(text) for text in texts])
    title = f"{name}: {found.same:,} same and {found.different:,} different pairs"
    print_grid(Grid(title, ["", "%", *(["95 % bootstrap interval"] if intervals else [])], [("", lines)]))


def _badness(row: dict[str, Any]) -> tuple[float, float]:
    return (row["accuracy"], row["gamma"])


def _console() -> Console:
    """A console as wide as the terminal, or wide enough for every table if the output is not a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)
