"""A run that is interrupted or killed ends as if nothing had happened."""

import dataclasses
import json
import os
import random
import signal
import time

import pytest
import torch

from tammes.lab.data import load
from tammes.lab.training import RunFolder, RunInterruptedError, train
from tammes.lab.training.monitor import read_log

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
    "sub-centers": {"centers": 3},
}


@pytest.mark.parametrize("kind", HARD)
def test_ctrl_c_writes_a_checkpoint_and_resuming_ends_the_same(
    settings, tmp_path, kind, assert_same_end, interrupt_at
):
    """Dropout, mixup, momentum, schedules, margins and loss scale all resume, mid-epoch and at its end."""
    config = settings(log_every=1, **HARD[kind])
    train(config, tmp_path / "whole")
    out = tmp_path / "broken"
    for step in (1, 6, 10, 18):  # six steps an epoch
        with pytest.raises(RunInterruptedError, match=f"after step {step}.*tammes train --resume --out"):
            train(config, out, resume=True, sinks=[interrupt_at(step)])
    train(config, out, resume=True)
    assert_same_end(out, tmp_path / "whole")


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
    from tammes.lab.cli import main

    os._exit(main(words))


def test_a_run_killed_at_ten_random_moments_ends_the_same(processes, stripes, tmp_path, assert_same_end):
    """Some moments lie before the first step, most among the steps, evaluations and checkpoints."""

    def start(out):
        words = ["train", stripes, "--model", "cnn4", "--epochs", "120", "--batch-size", "16"]
        words += ["--log-every", "2", "--checkpoint-seconds", "1e-9", "--out", str(out), "--resume"]
        process = processes.Process(target=command, args=(words,))
        process.start()
        return process

    def written(out):
        return (out / "log.jsonl").stat().st_size if (out / "log.jsonl").exists() else 0

    def kill_soon(moment):
        """Kill a run some time after it resumes; return whether it got that far and had a checkpoint."""
        process, before = start(out), written(out)
        while moment > 0 and process.is_alive() and written(out) == before:
            time.sleep(0.001)
        process.join(abs(moment))
        process.kill()
        process.join()
        return process.exitcode == -signal.SIGKILL, RunFolder(out).checkpoint() is not None

    whole, out, moments = start(tmp_path / "whole"), tmp_path / "killed", random.Random(7)
    whole.join()
    assert whole.exitcode == 0
    kills = [kill_soon(moments.uniform(-0.05, 0.25)) for _ in range(10)]
    assert [killed for killed, _ in kills].count(True) == 10
    assert [saved for _, saved in kills].count(True) >= 7
    last = start(out)
    last.join()
    assert last.exitcode == 0
    assert_same_end(out, tmp_path / "whole")


def test_an_evaluation_that_a_checkpoint_forestalls_is_logged_once(settings, tmp_path):
    """A checkpoint at the last step of an epoch, then death after the evaluation."""
    config = settings(checkpoint_seconds=1e-9, epochs=2)

    class Die:
        def __call__(self, record):
            if record["kind"] == "epoch":
                raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", resume=True, sinks=[Die()])
    train(config, tmp_path / "run", resume=True)
    epochs = [r["epoch"] for r in read_log(tmp_path / "run" / "log.jsonl") if r["kind"] == "epoch"]
    assert epochs == [0, 1]


def test_resuming_with_different_data_raises(settings, tmp_path, interrupt_at):
    with pytest.raises(RunInterruptedError):
        train(settings(log_every=1), tmp_path / "run", resume=True, sinks=[interrupt_at(3)])
    data = load(settings().data)
    renamed = dataclasses.replace(data, classes=("zebra", *data.classes[1:]))
    with pytest.raises(ValueError, match=r"started with other data: classes .*, now 'zebra'"):
        train(settings(log_every=1), tmp_path / "run", resume=True, dataset=renamed)
    fewer = dataclasses.replace(data, train=data.train.select(torch.arange(1, len(data.train))))
    with pytest.raises(ValueError, match="started with other data: class counts"):
        train(settings(log_every=1), tmp_path / "run", resume=True, dataset=fewer)


def test_a_checkpoint_without_a_config_cannot_be_resumed(settings, tmp_path):
    train(settings(), tmp_path / "run")
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(FileExistsError, match=r"checkpoint-\S+ is in the way and does not belong to a run"):
        train(settings(seed=9), tmp_path / "run")


def on_threads(count, settings, out, **options):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return train(settings, out, **options)
    finally:
        torch.set_num_threads(before)


def test_the_record_has_the_threads_and_a_run_that_changes_them_says_so(settings, tmp_path, interrupt_at):
    config = settings(epochs=2, log_every=1)
    whole = on_threads(1, config, tmp_path / "whole")
    assert whole["machine"]["threads"] == 1
    assert "threads_before" not in whole["machine"]
    with pytest.raises(RunInterruptedError):
        on_threads(2, config, tmp_path / "parts", sinks=[interrupt_at(5)])
    with pytest.warns(UserWarning, match=r"used 2 threads before and has 1 now.*OMP_NUM_THREADS=2"):
        parts = on_threads(1, config, tmp_path / "parts", resume=True)
    assert (parts["machine"]["threads"], parts["machine"]["threads_before"]) == (1, [2])
