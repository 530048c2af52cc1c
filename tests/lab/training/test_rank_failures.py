"""If a rank fails, dies or hangs, the others end in time and name the cause."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import pytest
import torch

from tammes.lab.training import rank_failures
from tammes.lab.training.distributed import world
from tammes.lab.training.rank_failures import TIMEOUT_VARIABLE, timeout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank(environment: dict[str, str], fault: str, guilty: int, parent: Connection) -> None:
    """One process: says when it has started, and the error that ends it."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        with world("cpu") as here:
            here.wait()
            parent.send("started")
            if here.rank == guilty:
                if fault == "raises":
                    raise ValueError("the disk is on fire")
                os.kill(os.getpid(), signal.SIGSTOP if fault == "freezes" else signal.SIGKILL)
            here.any(True)
            here.any(True)
    except Exception as error:
        parent.send(f"{type(error).__name__}: {error}")


def last_line(pipe: Connection) -> str:
    """The error of a rank, nothing if it died without one."""
    assert pipe.poll(100)
    try:
        return pipe.recv()
    except EOFError:
        return ""


@pytest.fixture
def last_lines(processes):
    """What each rank said last, and the seconds from the fault until all innocent ranks had ended."""
    ranks = []

    def run(fault: str, guilty: int, size: int = 3) -> tuple[list[str], float]:
        common = {"WORLD_SIZE": size, "MASTER_PORT": free_port(), TIMEOUT_VARIABLE: 0.1}
        common |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        pipes = []
        for place in range(size):
            own = {k: str(v) for k, v in (common | {"RANK": place, "LOCAL_RANK": place}).items()}
            pipe, other_end = processes.Pipe(duplex=False)
            ranks.append(processes.Process(target=rank, args=(own, fault, guilty, other_end)))
            ranks[-1].start()
            other_end.close()
            pipes.append(pipe)
        assert [last_line(pipe) for pipe in pipes] == ["started"] * size
        begin = time.monotonic()
        frozen = [guilty] if fault == "freezes" else []
        texts = ["" if place in frozen else last_line(pipe) for place, pipe in enumerate(pipes)]
        for place, process in enumerate(ranks):
            if place not in frozen:
                process.join(100)
                assert not process.is_alive()
        return texts, time.monotonic() - begin

    yield run
    for process in ranks:
        process.kill()
        process.join()


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_frozen_rank_is_named_after_the_timeout(guilty, last_lines):
    lines, seconds = last_lines("freezes", guilty)
    assert seconds < 60
    for rank, line in enumerate(lines):
        if rank != guilty:
            expected = rf"RankFailedError: Ranks? .*\b{guilty}\b.* did not respond for 0\.1 minutes"
            assert re.match(expected, line), line
            assert TIMEOUT_VARIABLE in line
            assert guilty == 0 or f"Rank {guilty} did" in line  # the first rank keeps the store


@pytest.mark.parametrize("guilty", [0, 2])
def test_every_rank_says_what_went_wrong_on_the_one_that_failed(guilty, last_lines):
    lines, seconds = last_lines("raises", guilty)
    assert seconds < 30
    for rank, line in enumerate(lines):
        own = "ValueError: the disk is on fire"
        assert line == (
            own if rank == guilty else f"RankFailedError: Rank {guilty} failed: the disk is on fire"
        )


def test_a_killed_rank_is_named(last_lines):
    lines, seconds = last_lines("dies", 1)
    assert seconds < 30
    for rank in (0, 2):
        assert lines[rank].startswith("RankFailedError: Rank 1 exited without a message")


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_a_timeout_that_is_none_is_refused(text, monkeypatch):
    monkeypatch.setenv(TIMEOUT_VARIABLE, text)
    with pytest.raises(
        ValueError, match=f"{TIMEOUT_VARIABLE} must be a positive number of minutes, got '{text}'"
    ):
        timeout()


def test_the_timeout_is_minutes_and_not_the_backend_s_half_hour(monkeypatch):
    monkeypatch.delenv(TIMEOUT_VARIABLE, raising=False)
    assert timeout().total_seconds() == 60 * rank_failures.USUAL_MINUTES <= 900


SCRIPT = """
import os, sys
from tammes.lab.cli import main
from tammes.lab.training.engine import Engine

step = Engine.step
def failing(self, batch, number):
    if os.environ["RANK"] == "1" and number == 3:
        raise ValueError("the disk is on fire")
    return step(self, batch, number)
Engine.step = failing
sys.exit(main(sys.argv[1:]))
"""


def test_torchrun_ends_with_the_cause(stripes, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        f"--master-port={free_port()}",
        str(script),
    ]
    words = ["train", stripes, "--out", str(tmp_path / "run"), "--model", "cnn4", "--epochs", "1"]
    done = subprocess.run(
        [sys.executable, *launch, *words, "--batch-size", "9", "--image-size", "32"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 1
    assert "tammes: the disk is on fire" in done.stderr
    assert "Connection" not in "".join(
        line for line in done.stderr.splitlines() if line.startswith("tammes:")
    )
    last = done.stderr[done.stderr.rindex("Root Cause") :]
    assert "the disk is on fire" in last
