"""Two processes never train in one folder."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from tammes.lab.cli import main
from tammes.lab.training import RunFolder, train
from tammes.lab.training.distributed import ALONE, FolderInUseError, locked


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_process_gets_one_line_and_changes_nothing(stripes, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["train", stripes, "--model", "cnn4", "--epochs", "1", "--out", str(out)]
    for more in ([], ["--resume"]):
        with locked(out, ALONE):
            before = contents(tmp_path)
            assert main([*words, *more]) == 2
            assert contents(tmp_path) == before
        error = capsys.readouterr().err
        assert error.startswith(f"tammes: {out} is in use: process {os.getpid()} is training in it.")
        assert "--out" in error
        assert error.count("\n") == 1
    assert not out.exists()
    assert main(words) == 0


def command(words: list[str]) -> None:
    torch.set_num_threads(1)
    os._exit(main(words))


def test_of_two_runs_started_together_one_finishes_and_one_raises(processes, stripes, tmp_path):
    words = ["train", stripes, "--model", "cnn4", "--epochs", "40", "--batch-size", "16"]
    words += ["--out", str(tmp_path / "run")]
    runs = [processes.Process(target=command, args=([*words, "--seed", str(seed)],)) for seed in range(2)]
    for process in runs:
        process.start()
    for process in runs:
        process.join(120)
    assert sorted(process.exitcode for process in runs) == [0, 2]
    winner = [process.exitcode for process in runs].index(0)
    folder = RunFolder(tmp_path / "run")
    assert folder.config.seed == folder.finished()["seed"] == winner
    assert not (tmp_path / "run" / ".lock").exists()


def test_the_lock_of_a_dead_process_is_ignored(settings, tmp_path):
    out = tmp_path / "run"
    code = (
        "import sys, time, pathlib\n"
        "from tammes.lab.training.distributed import ALONE\n"
        "from tammes.lab.training.distributed import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), ALONE):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(FolderInUseError, match=f"process {holder.pid} is training in it"):
            train(settings(epochs=1), out)
        holder.send_signal(signal.SIGKILL)
    assert (out / ".lock").exists()
    train(settings(epochs=1), out)
    assert not (out / ".lock").exists()


def test_a_worker_that_outlives_its_run_does_not_hold_the_lock(tmp_path):
    out = tmp_path / "run"
    with locked(out, ALONE):
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        worker.start()
    try:
        with locked(out, ALONE):
            pass
    finally:
        worker.kill()
        worker.join()


def test_a_worker_may_end_before_its_run(tmp_path):
    with locked(tmp_path, ALONE):
        worker = multiprocessing.get_context("fork").Process(target=int)
        worker.start()
        worker.join()
        with pytest.raises(FolderInUseError), locked(tmp_path, ALONE):
            pass


def test_a_finished_run_is_read_without_a_lock(settings, tmp_path):
    result = train(settings(epochs=1), tmp_path / "run")
    with locked(tmp_path / "run", ALONE):
        assert train(settings(epochs=1), tmp_path / "run", resume=True)["metrics"] == result["metrics"]
