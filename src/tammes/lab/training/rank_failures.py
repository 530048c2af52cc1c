"""A failure on one rank raises on every rank, with its cause. So does a rank that dies or hangs.

By default the others would report a closed connection, or time out after half an hour. Here a failing rank
writes its message to the store of the process group before closing its connections, and the others read it
there.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tammes._common import checks

TIMEOUT_VARIABLE = "TAMMES_TIMEOUT_MINUTES"
USUAL_MINUTES = 10.0
GRACE = 5.0
"""Seconds within which live ranks notice that another one closed its connections."""

CAUSE, HERE = "tammes/cause", "tammes/here/{}"
LOST = re.compile(
    r"connection (closed|reset|refused)|timed out|timeout|broken pipe|pair closure", re.IGNORECASE
)
LATE = re.compile(r"timed out|timeout", re.IGNORECASE)


class RankFailedError(OSError):
    """Another rank failed, died or hung."""


def timeout() -> timedelta:
    """Collective timeout: `TAMMES_TIMEOUT_MINUTES`, ten minutes by default."""
    given = os.environ.get(TIMEOUT_VARIABLE, str(USUAL_MINUTES))
    try:
        minutes = checks.positive(TIMEOUT_VARIABLE, float(given))
    except ValueError:
        raise ValueError(f"{TIMEOUT_VARIABLE} must be a positive number of minutes, got {given!r}.") from None
    return timedelta(minutes=minutes)


@contextmanager
def connected(backend: str, size: int) -> Iterator[None]:
    """Join the process group. An error inside the context raises its cause on every rank."""
    limit = timeout()
    try:
        dist.init_process_group(backend, timeout=limit)
    except dist.DistError as error:
        minutes = limit.total_seconds() / 60
        raise RankFailedError(
            f"Not all of the {size} ranks joined within {minutes:g} minutes. Does MASTER_ADDR name the first "
            f"machine, and did every machine start? {TIMEOUT_VARIABLE} sets the timeout."
        ) from error
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    try:
        yield
    except Exception as error:
        lost = isinstance(error, RuntimeError) and LOST.search(str(error))
        if not lost:
            _publish(error, store, rank)
        dist.destroy_process_group()  # so that ranks waiting for this one notice
        cause, missing = _within_grace(store, rank, size)
        if not lost:
            raise
        raise RankFailedError(_explanation(error, cause, missing, limit)) from error
    dist.destroy_process_group()


def _publish(error: Exception, store: Any, rank: int) -> None:
    """Publish the message to the other ranks and to torchrun, which prints it last."""
    text = " ".join(f"{error}".split()) or type(error).__name__
    with contextlib.suppress(RuntimeError):
        store.compare_set(CAUSE, "", f"Rank {rank} failed: {text}")
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with contextlib.suppress(OSError):
            Path(file).write_text(json.dumps({"message": text, "timestamp": int(time.time())}))


def _within_grace(store: Any, rank: int, size: int) -> tuple[str | None, list[int]]:
    """The published cause, if any, and the ranks that have not reported within `GRACE` seconds.

    Runs in a thread, because the store does not answer if its process hangs.
    """
    others = [other for other in range(size) if other != rank]
    found: dict[str, Any] = {"cause": None, "missing": others}

    def look() -> None:
        with contextlib.suppress(RuntimeError):
            store.set(HERE.format(rank), "")
            end = time.monotonic() + GRACE
            while found["missing"] and time.monotonic() < end:
                if found["cause"] is None and store.check([CAUSE]):
                    found["cause"] = store.get(CAUSE).decode()
                found["missing"] = [r for r in found["missing"] if not store.check([HERE.format(r)])]
                time.sleep(0.02)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(GRACE + 1)
    return found["cause"], found["missing"]


def _explanation(error: Exception, cause: str | None, missing: list[int], limit: timedelta) -> str:
    if cause is not None:
        return cause
    if not missing:
        return f"The connection between the ranks failed: {' '.join(str(error).split())}"
    ranks = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    if LATE.search(str(error)):
        return (
            f"{ranks} did not respond for {limit.total_seconds() / 60:g} minutes: is it stopped or stuck? "
            f"{TIMEOUT_VARIABLE} sets the timeout. Continue from the last checkpoint with --resume."
        )
    return (
        f"{ranks} exited without a message: killed, or out of memory? Continue from the last checkpoint with "
        "--resume."
    )
