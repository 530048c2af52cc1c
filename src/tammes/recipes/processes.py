"""Work shared out over processes, which all stop when they are asked to or when one fails."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

import torch

from tammes.memory import keep_freed_memory
from tammes.training.sinks import Record
from tammes.training.watch import RunInterruptedError, listening

POLL = 0.5
"""Seconds between two looks at whether the user asked to stop."""

_leash: dict[str, Any] = {}
"""In a worker: the event that asks it to stop, and its parent."""


def in_processes(task: Callable[[Any], None], items: Sequence[Any], jobs: int) -> None:
    """`task` of each item, `jobs` at a time, in processes that share the threads.

    Ctrl-C or SIGTERM, or an error in one, lets every task that heeds `Leash` end early; then it is raised.
    """
    context = multiprocessing.get_context("spawn")
    asked, threads = context.Event(), max(1, torch.get_num_threads() // jobs)
    left, running, errors = list(items), set[Future[None]](), list[BaseException]()
    pool = ProcessPoolExecutor(jobs, context, _begin, (asked, threads, os.getpid()))
    with listening() as stop, pool:
        while left or running:
            while left and len(running) < jobs:
                running.add(pool.submit(task, left.pop(0)))
            done, running = wait(running, POLL, return_when=FIRST_COMPLETED)
            errors += [error for future in done if (error := future.exception())]
            if stop.asked or errors:
                asked.set()
                left.clear()
    if errors:
        raise errors[0]
    if stop.asked:
        raise RunInterruptedError("Stopped.")


def _begin(asked: Any, threads: int, parent: int) -> None:
    """A worker starts; Ctrl-C reaches only its parent, which passes it on once."""
    if hasattr(os, "setsid"):
        os.setsid()
    torch.set_num_threads(threads)
    keep_freed_memory()
    _leash.update(asked=asked, parent=parent)


class Leash:
    """A sink by which a run in a worker stops where its parent asks it to, or is no more."""

    def __init__(self) -> None:
        self.pulled = False

    def __call__(self, record: Record) -> None:
        if not self.pulled and (_leash["asked"].is_set() or os.getppid() != _leash["parent"]):
            self.pulled = True
            signal.raise_signal(signal.SIGTERM)
