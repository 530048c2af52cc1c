"""Tables that commands print."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tammes.metrics.classification import Evaluation
from tammes.metrics.verification import Interval, Verification
from tammes.report.tables import Cell, Grid, to_terminal

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
"""Head of a column, its number, the factor and the digits that it is shown with."""


def print_result(result: dict[str, Any]) -> None:
    """One run as a table of one row; where classes are skewed, their counts and what goes with them."""
    print_runs([(result["data"], result)])
    if result["config"]["imbalance"] or "mean_class_accuracy" in result["metrics"]:
        print(f"Training images by class: {_ends(result['class_counts'])}")
    _print_groups(result["metrics"])


def _ends(counts: Sequence[int]) -> str:
    """All counts, or the first and the last ten."""
    texts = [str(count) for count in counts]
    return ", ".join(texts if len(texts) <= 20 else [*texts[:10], "...", *texts[-10:]])


def _print_groups(metrics: Mapping[str, Any]) -> None:
    """What is measured besides where the training classes are skewed."""
    if "mean_class_accuracy" in metrics:
        groups = [f"{name} {100 * metrics[name]:.2f} %" for name in GROUPS if name in metrics]
        print(f"Accuracy of classes with many (over 100), medium, few (under 20) images: {', '.join(groups)}")
        print(f"Expected calibration error: {100 * metrics['ece']:.2f} %")


def print_runs(rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Runs side by side: accuracy or what stands for it, class margin and its maximum, sample margin."""
    by_data: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, result in rows:
        by_data.setdefault(result["data"], []).append((name, result))
    apart = len(by_data) > 1
    for data, some in by_data.items():
        heads, numbers = metrics_rows([result["metrics"] for _, result in some])
        texts = (
            (name, result["config"]["objective"], *line, f"{result['seconds']:.0f}")
            for (name, result), line in zip(some, numbers, strict=True)
        )
        lines = [[Cell(text) for text in line] for line in texts]
        columns = ("run", "objective", *heads, "s")
        print_grid(Grid(f"on {data}" if apart else "", columns, [("", lines)], words=2))
    if apart:
        print("Runs on different data are kept apart: their numbers do not compare.")


def print_grid(grid: Grid) -> None:
    """A table on standard output."""
    _console().print(to_terminal(grid))


def metrics_rows(evaluations: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heads of the columns that any of the evaluations has, and their numbers, blank where one has none."""
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
    """The numbers of an evaluation."""
    heads, lines = metrics_rows([numbers])
    print_grid(Grid("", heads, [("", [[Cell(text) for text in lines[0]]])], words=0))


def print_evaluation(evaluation: Evaluation, classes: Sequence[str], worst: int) -> None:
    """The numbers of an evaluation and the classes it does worst on."""
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
            Text(row["class"]),
            f"{100 * row['accuracy']:.2f}",
            f"{row['sample_margin']:.4f}",
            f"{row['gamma']:.4f}",
            Text(row["nearest_class"]),
            f"{row['nearest_angle_deg']:.2f}",
        )
    _console().print(table)


NUMBERS = {"accuracy": "accuracy, ten folds", "auc": "area below the curve", "eer": "equal error rate"}


def print_verified(name: str, found: Verification, intervals: Mapping[str, Interval]) -> None:
    """The numbers of a list of pairs in per cent, with their intervals where there are any."""
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
    print_grid(Grid(title, ["", "%", *(["95 % of draws"] if intervals else [])], [("", lines)]))


def _badness(row: dict[str, Any]) -> tuple[float, float]:
    return (row["accuracy"], row["gamma"])


def _console() -> Console:
    """As wide as the terminal; wide enough for every table where there is none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)
