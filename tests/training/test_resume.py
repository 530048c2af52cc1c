"""A run that is interrupted or killed ends as if nothing had happened."""

import json
import os
import random
import signal
import time

import pytest
import torch

from tammes.training import RunFolder, RunInterruptedError, train
from tammes.training.sinks import read_log

TIMES = ("seconds", "samples_per_second", "date")


def traces(path):
    """Everything a run leaves, without what the clock decides."""
    folder = RunFolder(path)
    log = [{k: v for k, v in r.items() if k not in TIMES} for r in read_log(folder.log)]
    result = {k: v for k, v in (folder.result or {}).items() if k not in TIMES}
    return log, result, folder.weights(), folder.weights("best")


def assert_same_traces(a, b):
    for mine, theirs in zip(a[:2], b[:2], strict=True):
        assert mine == theirs
    for mine, theirs in zip(a[2:], b[2:], strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


class InterruptAt:
    """A sink that presses Ctrl-C when the run has come to a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, record) -> None:
        if record["step"] == self.step and record["kind"] == "step":
            signal.raise_signal(signal.SIGINT)


HARD = {
    "sgd": {"model": "dropout", "mixup": 0.3, "schedule": "one-cycle", "nesterov": True},
    "adamw": {
        "model": "cnn4",
        "optimizer": "adamw",
        "objective": "CosFace(s=8, m=0.3)",
        "margin_warmup": 2.0,
        "autocast": "fp16",
    },
    "reweighted": {
        "sampling": "balanced",
        "class_weights": "effective",
        "effective_beta": 0.9,
        "reweight_from": 0.5,
        "evaluate_every": 2,
    },
}


@pytest.mark.parametrize("kind", HARD)
def test_ctrl_c_writes_a_checkpoint_and_resuming_ends_the_same(settings, tmp_path, kind):
    """Dropout, mixup, momentum, schedules, margins and the loss scale all go on, mid-epoch and at its end."""
    config = settings(log_every=1, **HARD[kind])
    train(config, tmp_path / "whole")
    out = tmp_path / "broken"
    for step in (1, 6, 10, 18):  # six steps an epoch
        with pytest.raises(RunInterruptedError, match=f"after step {step}.*tammes train --resume --out"):
            train(config, out, resume=True, sinks=[InterruptAt(step)])
    train(config, out, resume=True)
    assert_same_traces(traces(out), traces(tmp_path / "whole"))


def test_resuming_a_finished_run_returns_its_result_and_changes_nothing(settings, tmp_path):
    first = train(settings(), tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    again = train(settings(), tmp_path / "run", resume=True)
    assert again == json.loads(json.dumps(first))
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == before


def test_a_run_that_died_before_its_result_was_written_makes_it_again(settings, tmp_path):
    first = train(settings(), tmp_path / "run")
    for name in ("result.json", "margins.npz"):
        (tmp_path / "run" / name).unlink()
    again = train(settings(), tmp_path / "run", resume=True)
    assert again["metrics"] == first["metrics"]
    assert (tmp_path / "run" / "margins.npz").is_file()


def command(words: list[str]) -> None:
    """`tammes` in a process of its own."""
    torch.set_num_threads(1)
    from tammes.cli import main

    os._exit(main(words))


def test_killed_at_ten_random_moments_a_run_ends_as_if_never_killed(processes, stripes, tmp_path):
    def start(out):
        words = ["train", stripes, "--model", "cnn4", "--epochs", "30", "--batch-size", "16"]
        words += ["--log-every", "2", "--checkpoint-seconds", "0.1", "--out", str(out), "--resume"]
        process = processes.Process(target=command, args=(words,))
        process.start()
        return process

    begin = time.monotonic()
    whole = start(tmp_path / "whole")
    whole.join()
    took = time.monotonic() - begin
    assert whole.exitcode == 0
    moments = random.Random(7)
    kills = 0
    while kills < 10:
        process = start(tmp_path / "killed")
        process.join(moments.uniform(0.02, 0.16) * took)
        if process.exitcode is not None:
            break
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert kills >= 8  # on a fast day it may come to its end before the tenth
    last = start(tmp_path / "killed")
    last.join()
    assert last.exitcode == 0
    assert_same_traces(traces(tmp_path / "killed"), traces(tmp_path / "whole"))
