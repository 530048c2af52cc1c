"""The entry point itself: help, mistakes, errors, exit codes."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tammes
from tammes.cli import COMMANDS, main

TAMMES = str(Path(sys.executable).with_name("tammes"))
MINE = ("demo", "train", "evaluate", "predict", "export", "compare", "report", "inspect")


def test_the_installed_command_says_what_it_can_do():
    done = subprocess.run([TAMMES, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    for name in COMMANDS:
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"  {name} "))
        assert len(line.split()) > 3  # a name and a sentence
    assert "examples:" in done.stdout


def test_without_a_command_it_says_so_too_and_fails(capsys):
    assert main([]) == 2
    assert "usage: tammes COMMAND" in capsys.readouterr().out


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tammes {tammes.__version__}\n"


@pytest.mark.parametrize("name", MINE)
def test_every_command_explains_itself_with_examples(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"  tammes {name}" in text


def test_every_flag_of_train_is_explained(capsys):
    from dataclasses import fields

    from tammes.cli.train import Train

    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    for field in fields(Train):
        assert field.name == "data" or f"--{field.name.replace('_', '-')}" in text
    lines = [line.strip("│ ") for line in text.splitlines()]
    for flag, below in itertools.pairwise(lines):
        if flag.startswith("--"):
            assert re.search(r"\S  +\S", flag) or not below.startswith("(default"), f"{flag} is not explained"


def test_a_misspelt_command_gets_the_nearest_one(capsys):
    assert main(["trian", "digits"]) == 2
    assert capsys.readouterr().err == "tammes: unknown command 'trian'. Did you mean train?\n"


def test_a_mistake_in_the_flags_ends_with_code_2(capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "digits", "--epoch", "3"])
    assert end.value.code == 2
    assert "--epochs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "nowhere/photos"], "nowhere/photos does not exist"),
        (["train", "digitz"], "Did you mean digits?"),
        (["train", "digits", "--model", "resnet81"], "Did you mean resnet18?"),
        (["train", "digits", "--objective", "CosFase(s=9, m=0.1)"], "Did you mean CosFace?"),
        (["train", "digits", "--objective", "__import__('os')"], "takes its parameters by name"),
        (["train", "digits", "--epochs", "0"], "epochs must be at least 1, got 0"),
        (["train", "digits", "--device", "cuda:99"], "no device 'cuda:99'"),
        (["train", "digits", "--seed", "99999999999999999999"], "seed must be below 2**63"),
        (["train", "--config", "nowhere.json"], "nowhere.json"),
        (["evaluate", "nowhere"], "nowhere holds no run"),
        (["predict", "nowhere", "image.png"], "nowhere holds no run"),
        (["export", "nowhere", "--format", "onnx"], "nowhere holds no run"),
        (["compare"], "at least one run"),
        (["compare", "nowhere"], "nowhere holds no run"),
        (["report"], "at least one run"),
        (["report", "nowhere"], "nowhere holds no run"),
        (["inspect", "nowhere.npz"], "There is no file nowhere.npz"),
    ],
)
def test_an_error_is_one_line_and_code_1(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("tammes: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not captured.out
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_with_debug_an_error_shows_where_it_came_from():
    with pytest.raises(ValueError, match="Did you mean digits"):
        main(["train", "digitz", "--debug"])


def test_an_unexpected_error_is_one_line_that_says_it_is_a_bug(monkeypatch, capsys):
    from tammes.cli import compare

    def broken(self):
        raise KeyError("lost")

    monkeypatch.setattr(compare.Compare, "run", broken)
    assert main(["compare", "x"]) == 1
    assert capsys.readouterr().err == "tammes: KeyError: 'lost' (This is a bug; --debug shows where.)\n"


def test_too_little_memory_is_said_to_be_that(monkeypatch, capsys):
    from tammes.cli import compare

    def large(self):
        torch.empty(10**15)

    monkeypatch.setattr(compare.Compare, "run", large)
    assert main(["compare", "x"]) == 1
    message = "There is not enough memory. Try a smaller --batch-size or --image-size."
    assert capsys.readouterr().err == f"tammes: {message}\n"


def test_without_the_lab_extra_the_install_line_is_printed():
    """A Python that cannot import tyro, as after a plain `pip install tammes`."""
    code = (
        "import sys; sys.modules['tyro'] = None\n"
        "from tammes.cli import main; sys.exit(main(['train', 'digits']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert 'pip install "tammes[lab]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_other_commands_do_not_import_training():
    """`pack` must not wait for the training engine, nor for anything else of the lab."""
    code = (
        "import sys; from tammes.cli import load; load('pack')\n"
        "heavy = {'tammes.training', 'torchvision', 'timm', 'sklearn', 'matplotlib', 'plotly', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
