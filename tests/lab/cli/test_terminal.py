"""Signals, pipes that close, and names with escapes in them."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from tammes import PrototypeHead, save_head
from tammes._common.terminal import printable
from tammes.lab.cli import main
from tammes.lab.training.run_folder import RunFolder

TAMMES = f"{sys.executable} -m tammes"
TRAIN = "train digits --model cnn4-hidden --batch-size 256 --log-every 1"


def shell(command: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=300
    )


def test_control_characters_become_visible():
    assert printable("a\x1b[2Jb\x07\x9b\x7f\r\n\u202e") == "a\\x1b[2Jb\\x07\\x9b\\x7f\\r\\n\\u202e"
    assert printable("été 日本 ok") == "été 日本 ok"


def test_a_run_continues_when_its_output_is_closed(tmp_path):
    done = shell(f"{TAMMES} {TRAIN} --epochs 3 --out {tmp_path}/run 2>&1 | head -1")
    assert done.returncode == 0, done
    assert len(done.stdout.splitlines()) == 1
    assert not done.stderr
    assert RunFolder(tmp_path / "run").finished()["epochs"] == 3


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_run_starts_with_closed_streams(tmp_path, closed):
    done = shell(f"{TAMMES} {TRAIN} --epochs 1 --out {tmp_path}/run {closed}")
    assert done.returncode == 0, done
    assert RunFolder(tmp_path / "run").finished()["epochs"] == 1


def test_other_commands_end_quietly_when_their_output_is_closed(run, photos):
    images = " ".join([str(photos)] * 40)
    done = shell(f"{TAMMES} predict {run} {images} | head -1")
    assert done.returncode == 141
    assert len(done.stdout.splitlines()) == 1
    assert not done.stderr


def begun(out, words: list[str], before=None) -> subprocess.Popen:
    """A run that has logged its first step."""
    command = [sys.executable, "-m", "tammes", *words, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=before)
    for _ in range(3000):
        if (out / "log.jsonl").exists() or process.poll() is not None:
            break
        time.sleep(0.02)
    assert process.poll() is None
    return process


def test_a_closed_terminal_makes_a_run_write_a_checkpoint(tmp_path):
    def listen():  # even if the tests run under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    process = begun(tmp_path / "run", [*TRAIN.split(), "--epochs", "100000"], listen)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)  # from the shell and from the kernel
    try:
        _, error = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "progress is saved" in error or "--resume" in error
    assert RunFolder(tmp_path / "run").checkpoint() is not None


def test_nohup_is_respected(tmp_path):
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = begun(tmp_path / "run", [*TRAIN.split(), "--epochs", "2"], ignore)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=300)
    assert process.returncode == 0


def test_a_terminated_command_leaves_no_temporary_file(tmp_path):
    """SIGTERM while a page is being written."""
    code = (
        "import os, signal, sys, pathlib\n"
        "from tammes._common import files\n"
        "from tammes.lab.cli import main\n"
        "from tammes.lab.cli import pack\n"
        "fsync = os.fsync\n"
        "files.os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGTERM) or fsync(fd)\n"
        "sys.exit(main(['pack', '3', '2', '--save', sys.argv[1]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "p.npy")], timeout=120)
    assert done.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def test_escapes_in_names_do_not_reach_the_terminal(tmp_path, capfd):
    rng, photos, out = np.random.default_rng(0), tmp_path / "photos", str(tmp_path / f"run{ESCAPE}")
    for place, name in enumerate(("red", f"green{ESCAPE}", "blue\x9b31m")):
        (photos / name).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(0, 90, (12, 14, 3))
            pixels[..., place] += 140
            Image.fromarray(pixels.astype(np.uint8)).save(photos / name / f"{i}{ESCAPE}.png")
    (photos / "red" / f"broken{ESCAPE}.png").write_text("no image")
    words = ["train", str(photos), "--model", "cnn4", "--epochs", "1", "--batch-size", "9", "--out", out]
    assert main(words) == 0
    main(["evaluate", out])
    main(["predict", out, str(photos), "--top", "3"])
    main(
        [
            "search",
            out,
            str(photos / "red" / f"0{ESCAPE}.png"),
            "--gallery",
            str(photos),
            "--out",
            f"{out}.png",
        ]
    )
    main(["embed", out, str(photos), "--out", str(tmp_path / "e.npz")])
    main(["compare", out])
    main(["inspect", out])
    main(["report", out])
    main(["train", str(photos / f"nowhere{ESCAPE}")])
    pairs = photos / f"pairs{ESCAPE}.csv"
    files = [
        f"red/{i}{ESCAPE}.png,{other}/{i}{ESCAPE}.png" for i in (0, 1) for other in ("red", f"green{ESCAPE}")
    ]
    pairs.write_text("\n".join(["first,second,same", *(f"{two},{i % 2}" for i, two in enumerate(files, 1))]))
    assert main(["verify", out, str(pairs)]) == 0
    assert main(["data", str(photos)]) == 0
    assert main(["pack", "3", "2", "--save", f"{out}.txt"]) == 0
    save_head(f"{out}-head", PrototypeHead(4, 3, "CE"))
    assert main(["head", "export", f"{out}-head", f"{out}.npz"]) == 0
    shown = "".join(capfd.readouterr())
    assert "green\\x1b]0;owned" in shown
    assert not re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert os.path.isdir(out)
