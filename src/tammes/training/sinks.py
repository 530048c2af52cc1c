"""Where the records of a run go: a JSONL file, TensorBoard, the terminal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tammes.training.storage import keep_lines

Record = dict[str, Any]
"""A "step" (loss, terms, learning rate, speed) or an "epoch" (the numbers of an evaluation)."""

Sink = Callable[[Record], None]


class JsonLines:
    """Appends each record to a file as one line of JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, record: Record) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise OSError(f"Cannot write {self.path}: {error.strerror}.") from error


def read_log(path: Path) -> list[Record]:
    """The records of a log; a last line that was cut short is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no log of a run: {error}.") from error


def rewind(path: Path, *, epoch: int, step: int) -> None:
    """Drop what a run that goes on in `epoch` after `step` makes again: later steps, and evaluations."""
    if path.exists():
        again = {"step": lambda r: r["step"] > step, "epoch": lambda r: r["epoch"] >= epoch}
        keep_lines(path, (json.dumps(r) for r in read_log(path) if not again[r["kind"]](r)))


class TensorBoard:
    """Writes every number of a record as a scalar."""

    def __init__(self, folder: Path, step: int) -> None:
        """What an earlier try of the run wrote after `step` is hidden."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                'TensorBoard is not installed. Install it: pip install "tammes[tensorboard]"'
            ) from error
        self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def __call__(self, record: Record) -> None:
        kind = record["kind"]
        for name, value in (record | record.get("terms", {})).items():
            if isinstance(value, int | float) and name != "step":
                self.writer.add_scalar(f"{kind}/{name}", value, record["step"])
        self.writer.flush()
