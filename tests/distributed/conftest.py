"""Real gloo processes for the tests: `ranks(world_size, function, *arguments)`.

Processes are forked from a server that has imported torch and tammes already, since importing takes longer
than the tests; a fork of the test process itself would inherit its threads.
"""

import datetime
import multiprocessing
import os
import socket
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

TIMEOUT = 60.0


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _process(
    rank: int, world_size: int, port: int, folder: str, timeout: float, function: Any, arguments: Any
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout),
        )
        torch.save(function(rank, *arguments), f"{folder}/{rank}.pt")
        dist.destroy_process_group()
    except BaseException:
        Path(f"{folder}/{rank}.error").write_text(traceback.format_exc())
        raise


class RanksFailedError(AssertionError):
    """Some ranks raised: `errors` by rank."""

    def __init__(self, errors: dict[int, str]) -> None:
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in errors.items()))
        self.errors = errors


def run(
    world_size: int, function: Callable[..., Any], *arguments: Any, timeout: float = TIMEOUT
) -> list[Any]:
    """What `function(rank, *arguments)` returns on each of `world_size` ranks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "tammes.heads", "torch.distributed.checkpoint"])
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        processes = [
            context.Process(
                target=_process, args=(rank, world_size, port, folder, timeout, function, arguments)
            )
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout + 30)
        stuck = [process for process in processes if process.is_alive()]
        for process in stuck:
            process.kill()
        errors = {int(path.stem): path.read_text() for path in sorted(Path(folder).glob("*.error"))}
        errors |= {processes.index(process): "still running" for process in stuck}
        for rank, process in enumerate(processes):
            if process.exitcode and rank not in errors:
                errors[rank] = f"exit code {process.exitcode}"
        if errors:
            raise RanksFailedError(errors)
        return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(world_size)]


@pytest.fixture(scope="session")
def ranks() -> Callable[..., list[Any]]:
    return run
