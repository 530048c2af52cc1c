"""The live line of a run in a terminal, and one plain line an epoch elsewhere."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tammes.training.sinks import Record

SHARES = {"accuracy": "accuracy", "mAP": "mAP", "rank1": "rank-1"}
"""Numbers of an evaluation that are said as percentages, and how."""


class Terminal:
    """Shows records on standard error: epoch, speed, time left, loss terms, margin against its maximum."""

    def __init__(self, title: str, *, every_epoch: bool = True) -> None:
        self.every_epoch = every_epoch
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.title = title
        self.live = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
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

    def __call__(self, record: Record) -> None:
        if record["kind"] == "step":
            self.live.update(self.task, completed=record["progress"], news=step_line(record))
        elif self.every_epoch:
            self.live.console.print(epoch_line(self.title, record), markup=False)


def step_line(record: Record) -> str:
    """One step in a few words."""
    terms = "  ".join(f"{name} {value:.3f}" for name, value in record["terms"].items())
    return f"epoch {record['epoch'] + 1}  {record['samples_per_second']:,.0f}/s  {terms}"


def epoch_line(title: str, record: Record) -> str:
    """One evaluation in a line."""
    at_most = "of" if record["maximum_is_exact"] else "of at most"
    margin, maximum = record["class_margin_deg"], record["class_margin_maximum_deg"]
    parts = [
        f"{title}  epoch {record['epoch'] + 1}  loss {record['loss']:.4f}",
        *(f"{word} {100 * record[name]:.2f} %" for name, word in SHARES.items() if name in record),
        *(f"{name[:-4]} AUC {100 * value:.2f} %" for name, value in record.items() if name.endswith("_auc")),
        f"class margin {margin:.2f} {at_most} {maximum:.2f} deg",
    ]
    if "sample_margin" in record:
        parts.append(f"sample margin {record['sample_margin']:.4f} of {record['sample_margin_ceiling']:.4f}")
    return "  ".join([*parts, f"{record['seconds']:.0f} s"])
