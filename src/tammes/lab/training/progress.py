"""Progress of a run: a live line in a terminal, one plain line per epoch elsewhere."""

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tammes._common.terminal import printable
from tammes.lab.training.run_plan import TERMINAL_WIDTH, duration, plan_lines
from tammes.lab.training.sinks import Record

SHARES = {"accuracy": "accuracy", "mAP": "mAP", "rank1": "rank-1"}
"""Metrics shown as percentages, and their labels."""


class Terminal:
    """Shows a run on standard error: a bar that moves with every step, and a line for each evaluation.

    Args:
        title: name of the run, next to the bar.
        every_epoch: print a line for each evaluation.
        titled: begin these lines with the title, where several runs are shown.
    """

    def __init__(self, title: str, *, every_epoch: bool = True, titled: bool = False) -> None:
        self.every_epoch, self.titled = every_epoch, titled
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.title = title = printable(title)
        self.live = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("{task.fields[news]}"),
            console=self.console,
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self.task = self.live.add_task(title, total=1.0, news="")

    def __enter__(self) -> "Terminal":
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def announce(self, plan: dict[str, str]) -> None:
        """Print what the run will do."""
        for line in plan_lines(plan):
            self.live.console.print(line, markup=False)

    def tick(self, progress: float) -> None:
        """Move the bar, after every step."""
        self.live.update(self.task, completed=progress)

    def __call__(self, record: Record) -> None:
        if record["kind"] == "step":
            self.live.update(self.task, completed=record["progress"], news=step_line(record))
        elif self.every_epoch:
            title = f"{self.title}  " if self.titled else ""
            self.live.console.print(f"{title}{epoch_line(record)}", markup=False)


def step_line(record: Record) -> str:
    """Summary of a step."""
    return f"epoch {record['epoch'] + 1}  {record['samples_per_second']:,.0f}/s  loss {record['loss']:.3f}"


def epoch_line(record: Record) -> str:
    """Summary of an evaluation, in one line of at most 80 columns."""
    parts = [
        f"epoch {record['epoch'] + 1}",
        *(f"{word} {100 * record[name]:.2f} %" for name, word in SHARES.items() if name in record),
        *(f"{name[:-4]} AUC {100 * value:.2f} %" for name, value in record.items() if name.endswith("_auc")),
        margin_in_words(record, of="of"),
        duration(record["seconds"]),
    ]
    while len("  ".join(parts)) > TERMINAL_WIDTH:
        parts.pop()
    return "  ".join(parts)


def margin_in_words(metrics: Mapping[str, Any], *, of: str = "of at most") -> str:
    """The class margin against its maximum.

    >>> margin_in_words({"class_margin_deg": 73.6, "class_margin_maximum_deg": 98.2})
    'class margin 74 of at most 98 degrees (75 %)'
    """
    margin, maximum = metrics["class_margin_deg"], metrics["class_margin_maximum_deg"]
    return f"class margin {margin:.0f} {of} {maximum:.0f} degrees ({100 * margin / maximum:.0f} %)"
