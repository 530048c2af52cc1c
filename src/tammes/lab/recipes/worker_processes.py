"""A pool of worker processes that stop together: on Ctrl-C, on SIGTERM, or when one of them fails."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

import torch

from tammes._common.memory import keep_freed_memory
from tammes._common.terminal import Unread
from tammes.lab.training.monitor import Record, RunInterruptedError, listening
from tammes.losses._registry import load_handed_plugins

POLL_SECONDS = 0.5
"""How often the parent looks for a signal."""

_parent: dict[str, Any] = {}
"""In a worker: the event that requests a stop, and the process id of its parent."""


def in_processes(task: Callable[[Any], None], items: Sequence[Any], jobs: int) -> None:
    """Run `task` on each item in `jobs` processes, which share the threads.

    After a signal or an error, tasks that use `StopSink` end early, the others are not started, and the
    interruption or the first error is raised.
    """
    context = multiprocessing.get_context("spawn")
    asked, threads = context.Event(), max(1, torch.get_num_threads() // jobs)
    left, running, errors = list(items), set[Future[None]](), list[BaseException]()
    pool = ProcessPoolExecutor(jobs, context, _start_worker, (asked, threads, os.getpid()))
    with listening() as stop, pool:
        while left or running:
            while left and len(running) < jobs:
                running.add(pool.submit(task, left.pop(0)))
            done, running = wait(running, POLL_SECONDS, return_when=FIRST_COMPLETED)
            errors += [error for future in done if (error := future.exception())]
            if stop.asked or errors:
                asked.set()
                left.clear()
    if errors:
        raise errors[0]
    if stop.asked:
        raise RunInterruptedError("Interrupted.")


def _start_worker(asked: Any, threads: int, parent: int) -> None:
    """Set up a worker. It has its own session, so Ctrl-C reaches only the parent, which forwards it once."""
    if hasattr(os, "setsid"):
        os.setsid()
    torch.set_num_threads(threads)
    keep_freed_memory()
    load_handed_plugins()
    sys.stdout, sys.stderr = Unread(sys.stdout), Unread(sys.stderr)
    _parent.update(asked=asked, id=parent)


class StopSink:
    """A log sink that stops a worker's run when its parent requests it or has exited."""

    def __init__(self) -> None:
        self.stopped = False

    def __call__(self, record: Record) -> None:
        if not self.stopped and (_parent["asked"].is_set() or os.getppid() != _parent["id"]):
            self.stopped = True
            signal.raise_signal(signal.SIGTERM)
