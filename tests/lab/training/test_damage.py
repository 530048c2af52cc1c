"""Bits that flip on the disk: noticed, said, and repaired where a copy allows it."""

import random
import shutil

import pytest
import torch

from tammes.lab.cli import main
from tammes.lab.training import RunFolder, RunInterruptedError, train
from tammes.lab.training.monitor import read_log


def flip(path, place=None):
    """One bit of a file; a random place by default."""
    content = bytearray(path.read_bytes())
    place = random.Random(str(path)).randrange(len(content)) if place is None else place
    content[place] ^= 4
    path.write_bytes(content)


@pytest.fixture
def interrupted(interrupt_at):
    """Makes a run with checkpoints after steps 4 and 9 of 12; the last one."""

    def make(config, out):
        for step in (4, 9):
            with pytest.raises(RunInterruptedError):
                train(config, out, resume=True, sinks=[interrupt_at(step)])
        last, before = RunFolder(out).checkpoints()
        assert (last.name[-2:], before.name[-2:]) == ("09", "04")
        return last

    return make


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = {
    "flipped weights": lambda last: flip(last / "weights.safetensors", -1),
    "flipped state": lambda last: flip(last / "state.pt"),
    "flipped manifest": lambda last: flip(last / "manifest.json", 60),
    "short weights": lambda last: halve(last / "weights.safetensors"),
    "short state": lambda last: halve(last / "state.pt"),
    "empty manifest": lambda last: (last / "manifest.json").write_text(""),
    "no state": lambda last: (last / "state.pt").unlink(),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_set_aside_and_the_run_ends_the_same(
    settings, tmp_path, interrupted, assert_same_end, kind
):
    config = settings(log_every=1, epochs=2)
    train(config, tmp_path / "whole")
    last = interrupted(config, tmp_path / "broken")
    DAMAGE[kind](last)
    with pytest.warns(
        UserWarning, match=r"Resuming from checkpoint-\S*04; the damaged one is now \S*damaged-"
    ):
        train(config, tmp_path / "broken", resume=True)
    assert_same_end(tmp_path / "broken", tmp_path / "whole")
    assert (tmp_path / "broken" / f"damaged-{last.name}").is_dir()


def test_without_a_whole_checkpoint_the_error_says_what_to_do(settings, tmp_path, interrupted):
    config = settings(log_every=1, epochs=2)
    interrupted(config, tmp_path / "run")
    for checkpoint in RunFolder(tmp_path / "run").checkpoints():
        flip(checkpoint / "state.pt")
    with pytest.raises(ValueError, match=r"No checkpoint of .*state.pt .*checksum.*rm -r .*--resume"):
        train(config, tmp_path / "run", resume=True)
    for checkpoint in RunFolder(tmp_path / "run").checkpoints():
        shutil.rmtree(checkpoint)
    train(config, tmp_path / "run", resume=True)  # as it was told


def test_damaged_weights_are_not_used(settings, tmp_path, capsys):
    train(settings(checkpoint_seconds=1e-9), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    last, before = folder.checkpoints()
    flip(last / "weights.safetensors", -1)
    assert main(["export", str(folder.path), "--format", "safetensors"]) == 1
    error = capsys.readouterr().err
    assert f"{last}/weights.safetensors cannot be read: its checksum is wrong" in error
    assert f"To use the one before, {before.name}: rm -r {last}" in error
    flip(folder.path / "best.safetensors", -1)
    assert main(["export", str(folder.path), "--format", "safetensors", "--weights", "best"]) == 1
    assert "best.safetensors cannot be read: its checksum is wrong" in capsys.readouterr().err


def test_every_flipped_bit_of_a_checkpoint_is_noticed(tmp_path):
    folder, draws = RunFolder(tmp_path), random.Random(0)
    folder.save("checkpoint-00000-000000001", {"w": torch.ones(3), "k": torch.tensor(2)}, {"step": 1})
    (checkpoint,) = folder.checkpoints()
    for name in ("weights.safetensors", "state.pt"):
        whole = (checkpoint / name).read_bytes()
        for _ in range(50):
            flip(checkpoint / name, draws.randrange(len(whole)))
            with pytest.raises(ValueError, match="No checkpoint of"):
                folder.restore()
            (checkpoint / name).write_bytes(whole)
    assert folder.restore() is not None


def test_damaged_lines_of_a_log_are_set_aside(settings, tmp_path, interrupted):
    config = settings(log_every=1, epochs=2)
    train(config, tmp_path / "whole")
    interrupted(config, tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    lines = log.read_bytes().split(b"\n")
    bad = [b"\xff" + lines[0], lines[2].replace(b'"kind"', b'"kinf"'), b"[1]", b"{"]
    log.write_bytes(b"\n".join([bad[0], lines[1], bad[1], *lines[3:-1], bad[2], bad[3], b""]))
    with pytest.warns(UserWarning, match=r"log.jsonl has 4 damaged lines"):
        assert len(read_log(log)) == len(lines) - 3
    with pytest.warns(UserWarning, match=r"4 damaged lines of \S*log.jsonl are now in \S*damaged-log.jsonl"):
        train(config, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "damaged-log.jsonl").read_bytes().split(b"\n")[:-1] == bad
    left, whole = read_log(log), read_log(tmp_path / "whole" / "log.jsonl")
    assert [r["step"] for r in left] == [r["step"] for i, r in enumerate(whole) if i not in (0, 2)]
