"""Real gloo processes for the tests: `ranks(world_size, function, *arguments)`.

Processes are forked from a server that has imported torch and tammes already, since importing takes longer
than the tests; a fork of the test process itself would inherit its threads.
"""

import inspect
import multiprocessing
import runpy
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

TIMEOUT = 60.0
PRELOADED = [  # modules, since the packages of tammes import theirs when a name is first used
    "pytest",
    "safetensors.torch",
    "torch._dynamo",
    "tammes.heads.checkpoint",
    "tammes.heads.sharded",
    "tammes.losses.catalogue",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp.sharded_grad_scaler",
    "torch.distributed.tensor",
]


class RanksFailedError(AssertionError):
    """Some ranks raised or died: `errors` by rank."""

    def __init__(self, errors: dict[int, str]) -> None:
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in sorted(errors.items())))
        self.errors = errors


def run(
    world_size: int, function: Callable[..., Any], *arguments: Any, timeout: float = TIMEOUT
) -> list[Any]:
    """The return values of `function(rank, *arguments)` on each of `world_size` ranks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "world_size": world_size,
            "port": _free_port(),
            "timeout": timeout,
            "folder": folder,
            "file": inspect.getfile(function),
            "function": function.__name__,
            "arguments": arguments,
        }
        launcher = str(Path(__file__).with_name("launcher.py"))
        processes = [
            context.Process(target=runpy.run_path, args=(launcher, {"JOB": job | {"rank": rank}}, "__main__"))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        errors = _wait(processes, timeout + 30)
        errors |= {int(path.stem): path.read_text() for path in Path(folder).glob("*.error")}
        if errors:
            raise RanksFailedError(errors)
        return [torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in range(world_size)]


def _wait(processes: list[Any], timeout: float) -> dict[int, str]:
    """Wait until all ranks have ended; return those that had to be killed and those that died."""
    errors = {}
    for rank, process in enumerate(processes):
        process.join(timeout)
        if process.is_alive():
            process.kill()
            errors[rank] = "still running"
        elif process.exitcode:
            errors[rank] = f"exit code {process.exitcode}"
    return errors


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def ranks() -> Callable[..., list[Any]]:
    """Runs a function on several ranks; see `run`."""
    return run
