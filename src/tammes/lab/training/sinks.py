"""The log of a run: a file with one record of JSON per line."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tammes._common.files import write_bytes, write_text

Record = dict[str, Any]
"""A "step" (loss, terms, learning rate, speed) or an "epoch" (the metrics of an evaluation)."""

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
    """Read the records of a log. Skips an incomplete last line, and damaged lines with a warning."""
    records, damaged = _split(path)
    if damaged:
        warnings.warn(f"{path} has {len(damaged)} damaged lines, which are skipped.", stacklevel=2)
    return records


def rewind(path: Path, *, epoch: int, step: int) -> None:
    """Drop the records that a run resumed in `epoch` after `step` will write again.

    Damaged lines are moved to a file next to the log. Training does not need them.
    """
    records, damaged = _split(path)
    if damaged:
        aside = path.with_name(f"damaged-{path.name}")
        before = aside.read_bytes() if aside.is_file() else b""
        write_bytes(aside, before + b"".join(line + b"\n" for line in damaged))
        warnings.warn(f"{len(damaged)} damaged lines of {path} are now in {aside}.", stacklevel=2)
    if path.exists():
        again = {"step": lambda r: r["step"] > step, "epoch": lambda r: r["epoch"] >= epoch}
        kept = [json.dumps(r) for r in records if not again[r["kind"]](r)]
        write_text(path, "".join(f"{line}\n" for line in kept))


def _split(path: Path) -> tuple[list[Record], list[bytes]]:
    """The records of a log, and its damaged lines. An incomplete last line is neither."""
    records: list[Record] = []
    damaged: list[bytes] = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.is_file() else []:
        record = _record(line)
        if record is None:
            damaged.append(line)
        else:
            records.append(record)
    return records, damaged


def _record(line: bytes) -> Record | None:
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    known = isinstance(found, dict) and found.get("kind") in ("step", "epoch")
    return found if known and isinstance(found.get(found["kind"]), int) else None
