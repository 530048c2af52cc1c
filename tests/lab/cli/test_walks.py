"""The walks in CONTRIBUTING name the files that are executed, and no others."""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import tammes
from tammes.heads import prototype
from tammes.lab import record_stamp
from tammes.lab.cli import main
from tammes.lab.training.run_folder import RunFolder

SOURCE = Path(tammes.__file__).parent
CONTRIBUTING = Path(__file__).parents[3] / "CONTRIBUTING.md"
A_FUNCTION = 2
"""Flag of code with locals of its own: functions, but not the bodies of modules and classes."""


def walk(start: str) -> str:
    """The text from `start` to the next walk."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    assert text.count(start) == 1
    return re.split(r"\nA `ShardedPrototypeHead`|\n`tammes ", text.partition(start)[2])[0]


def files_in(text: str) -> set[str]:
    """Files named with their folder, and modules of `heads/_stream/` without it."""
    names = re.findall(r"`([\w/]+\.py)`", text)
    return {name if "/" in name else f"heads/_stream/{name}" for name in names} - {
        "tests/lab/cli/test_walks.py"
    }


def files_executed(action: Callable[[], object], until: object = None) -> set[str]:
    """Files of the package with a function that `action` executes before `until` returns."""
    executed: set[str] = set()
    ended = False

    def note(frame, event, _):
        nonlocal ended
        code = frame.f_code
        ended = ended or (event == "return" and code is until)
        if event == "call" and not ended and code.co_flags & A_FUNCTION:
            executed.add(code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return {str(Path(name).relative_to(SOURCE)) for name in executed if Path(name).is_relative_to(SOURCE)}


def test_the_walk_of_a_training_run(tmp_path, capsys):
    def run() -> None:
        sizes = ["--epochs", "1", "--batch-size", "719"]
        main(["train", "digits", *sizes, "--out", str(tmp_path / "run")])

    record_stamp.commit.cache_clear()  # an earlier run in this process may have asked for it
    executed = files_executed(run, until=inspect.unwrap(RunFolder.save).__code__)
    steps, _, elsewhere = walk("`tammes train` to a checkpoint:").strip().partition("\n\n")
    named = re.findall(r"^\d+\. `(.*?)`", steps, re.MULTILINE)
    assert sorted(named) == sorted(name for name in executed if name.startswith("lab/"))
    assert len(named) <= 20
    others = files_in(elsewhere)
    assert not others & executed
    assert all((SOURCE / name).is_file() for name in others)


def test_the_walk_of_a_loss_and_its_gradients(monkeypatch):
    """Streamed, and in chunks of rows; dense and sampled heads are named in passing."""
    executed: set[str] = set()
    for rows, buffer_bytes in ((8, 2**20), (1024, 512 * 20 * 4)):
        monkeypatch.setattr(prototype, "BUFFER_BYTES", buffer_bytes)
        head = tammes.PrototypeHead(4, 20, "CosFace(s=32, m=0.2)")
        z = torch.randn(rows, 4, requires_grad=True)
        y = torch.arange(rows) % 20
        head(z, y).backward()  # the first call resolves lazy names
        executed |= files_executed(lambda head=head, z=z, y=y: head(z, y).backward())
    named = files_in(walk("`loss = head(z, y); loss.backward()`, through a `PrototypeHead`:"))
    assert named - {"heads/_sampled.py"} == executed - {"losses/cosface.py"}
