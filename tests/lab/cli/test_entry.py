"""The entry point itself: help, mistakes, errors, exit codes."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tammes
from tammes.lab.cli import COMMANDS, flags, main
from tammes.lab.cli.help_page import flags_of
from tammes.lab.cli.reproduce import EXPERIMENTS
from tammes.lab.cli.train import Train

TAMMES = str(Path(sys.executable).with_name("tammes"))


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


PARTS = {"reproduce": tuple(EXPERIMENTS), "head": ("export", "import")}
"""Commands of commands."""
WORDS = [(name,) for name in COMMANDS] + [(name, part) for name, parts in PARTS.items() for part in parts]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_every_command_explains_itself_with_examples(words, capsys):
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"  tammes {' '.join(words)}" in text


@pytest.mark.parametrize("words", [(), *WORDS], ids=" ".join)
def test_help_fits_a_terminal_of_80_columns(words, capsys, monkeypatch):
    """Except for usage lines and examples, which must be copied in one piece."""
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        main([*words, "--help"])
    about, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    assert examples
    assert [line for line in about.splitlines()[1:] if len(line) > 80] == []


def help_of(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([*words])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_every_flag_of_train_is_explained_under_help_all(capsys):
    text = help_of(capsys, "train", "--help-all")
    flags = flags_of(Train)
    assert len(flags) > 60
    for flag in flags:
        assert flag.text, f"{flag.name} is not explained"
        assert f"  {flag.usage}" in text
    assert "None}" not in text
    assert "|INT" not in text


def test_help_says_what_repeats(capsys):
    text = " ".join(help_of(capsys, "train", "--help-all").split())
    assert "CPU runs repeat bit for bit without it, given the same number of threads and processes" in text


def test_optional_settings_show_their_choices(capsys):
    text = help_of(capsys, "train", "--help-all")
    assert "--augment-style {fast,standard,photos}" in text
    assert "--unit-prototypes {True,False}" in text  # a bare flag could not be switched off
    words = ["digits", "--unit-prototypes", "False", "--augment-style", "standard", "--no-augment"]
    given = flags(Train, "train", words)
    assert (given.unit_prototypes, given.augment_style, given.augment) == (False, "standard", False)
    assert "Do not augment training images" in text


def test_train_help_shows_the_first_options_in_groups(capsys):
    text = help_of(capsys, "train", "--help")
    shown = set(re.findall(r"^  --([a-z-]+)", text, re.MULTILINE))
    assert {name.replace("-", "_") for name in shown} == Train.first_options
    assert re.findall(r"^([a-z ]+):$", text, re.MULTILINE)[:3] == ["arguments", "data", "model and objective"]
    assert "--help-all" in text


def test_every_option_of_train_is_in_one_group():
    grouped = [name for names in Train.option_groups.values() for name in names]
    assert sorted(grouped) == sorted({flag.field for flag in flags_of(Train)} - {"data"})


def test_help_is_a_command_too(capsys):
    assert main(["help"]) == 0
    assert "usage: tammes COMMAND" in capsys.readouterr().out
    assert help_of(capsys, "help", "pack") == help_of(capsys, "pack", "--help")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_flags(shell, capsys):
    assert main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*COMMANDS, "checkpoint-seconds", "time-limit", "help-all"):
        assert word in script


def test_the_bash_completion_completes(tmp_path, capsys):
    assert main(["--print-completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    lines = [f"source {script}", "COMP_WORDS=(tammes train --check)", "COMP_CWORD=2", "_tammes"]
    bash = ["bash", "-c", "; ".join([*lines, 'echo "${COMPREPLY[@]}"'])]
    done = subprocess.run(bash, capture_output=True, text=True, check=True)
    assert done.stdout == "--checkpoint-seconds\n"


def test_an_unknown_shell_is_a_mistake(capsys):
    assert main(["--print-completion", "tcsh"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err


def test_a_misspelled_command_gets_the_nearest_one(capsys):
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
        (["evaluate", "nowhere"], "nowhere is not a run folder"),
        (["predict", "nowhere", "image.png"], "nowhere is not a run folder"),
        (["export", "nowhere", "--format", "onnx"], "nowhere is not a run folder"),
        (["compare"], "at least one run"),
        (["compare", "nowhere"], "nowhere is not a run folder"),
        (["report"], "at least one run"),
        (["report", "nowhere"], "nowhere is not a run folder"),
        (["inspect", "nowhere.npz"], "File nowhere.npz does not exist"),
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
    from tammes.lab.cli import compare

    def broken(self):
        raise KeyError("lost")

    monkeypatch.setattr(compare.Compare, "run", broken)
    assert main(["compare", "x"]) == 1
    assert capsys.readouterr().err == "tammes: KeyError: 'lost' (This is a bug; --debug shows where.)\n"


def test_running_out_of_memory_is_one_line(monkeypatch, capsys):
    from tammes.lab.cli import compare

    def large(self):
        torch.empty(10**15)

    monkeypatch.setattr(compare.Compare, "run", large)
    assert main(["compare", "x"]) == 1
    message = "Out of memory. Try a smaller --batch-size or --image-size."
    assert capsys.readouterr().err == f"tammes: {message}\n"


def test_without_the_lab_extra_the_install_line_is_printed():
    """A Python that cannot import tyro, as after a plain `pip install tammes`."""
    code = (
        "import sys; sys.modules['tyro'] = None\n"
        "from tammes.lab.cli import main; sys.exit(main(['train', 'digits']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert 'pip install "tammes[lab]"' in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], *([*words, "--help"] for words in WORDS)], ids=" ".join
)
def test_help_comes_at_once(words):
    """Without torch, and in a small part of half a second of computing."""
    code = (
        "import sys, time\nfrom tammes.lab.cli import main\n"
        f"try: main({list(words)})\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules, time.process_time(), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    torch_is_there, numpy_is_there, seconds = done.stderr.split()
    assert (torch_is_there, numpy_is_there) == ("False", "False")
    assert float(seconds) < 0.5


def test_other_commands_do_not_import_training():
    """`pack` must not wait for the training engine, nor for anything else of the lab."""
    code = (
        "import sys; from tammes.lab.cli import load_command; load_command('pack')\n"
        "heavy = {'tammes.lab.training', 'torchvision', 'timm', 'sklearn', 'matplotlib', 'jinja2', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
