"""Commands for people with a folder of photos."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tammes.heads import prototype
from tammes.lab.cli import main
from tammes.lab.training.run_folder import RunFolder


def test_data_describes_and_checks_a_folder_without_training(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", str(photos), "--model", "cnn4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("images     36 to train on, 9 to test on")
    assert any(line.startswith("in both    no image is in both train and test") for line in lines)
    assert max(map(len, lines)) <= 80
    assert not list(tmp_path.iterdir())
    assert main(["data", str(photos), "--model", "cnn4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unreadable"] == "none"


def test_data_takes_named_sets_too(capsys):
    assert main(["data", "digits", "--model", "cnn4-hidden"]) == 0
    assert "16 x 16 pixels" in capsys.readouterr().out


def test_a_wrong_model_is_one_line_before_the_data_is_read(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tammes.lab.training.loop.load_data", lambda *_: pytest.fail("the data was read"))
    assert main(["train", str(photos), "--model", "cnn44", "--out", str(tmp_path / "run")]) == 1
    assert "Unknown model 'cnn44'" in capsys.readouterr().err


def test_an_error_before_the_first_step_does_not_wait_for_the_compiler(photos, tmp_path):
    """torch.use_deterministic_algorithms imports it, which takes as long as importing torch."""
    words = ["train", str(photos), "--model", "cnn44", "--out", str(tmp_path / "run")]
    code = (
        f"import sys; from tammes.lab.cli import main; print(main({words}), 'torch._inductor' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1", "False"]
    assert done.stderr.startswith("tammes: Unknown model 'cnn44'")


def test_the_prototypes_of_a_run_are_exported_with_their_classes(run, tmp_path, capsys):
    target = tmp_path / "prototypes.npz"
    assert main(["head", "export", str(run), str(target)]) == 0
    stored = np.load(target)
    assert stored["classes"].tolist() == ["blue", "green", "red"]
    expected = RunFolder(run).classifier().head.weight.detach().numpy()
    np.testing.assert_array_equal(stored["weight"], expected)
    assert f"{target}: weight (3, " in capsys.readouterr().out


def test_the_scale_is_judged_in_training_and_not_again(photos, tmp_path, capsys, monkeypatch):
    out = str(tmp_path / "run")
    words = ["train", str(photos), "--model", "cnn4", "--epochs", "1", "--objective", "NormFace(s=64)"]
    for command in ([*words, "--out", out], ["evaluate", out], ["report", out]):
        monkeypatch.setattr(prototype, "ADVICE_GIVEN", set())  # as in a new process
        assert main(command) == 0
        said = "s=64 is too large for 3 classes; try s=4 or add '+ 0.5*R_sm'" in capsys.readouterr().err
        assert said == (command[0] == "train")


@pytest.mark.parametrize("command", ["report", "inspect"])
def test_pages_of_small_sets_take_under_five_seconds_of_computing(run, tmp_path, command):
    words = [command, str(run), "--out", str(tmp_path / "page.html")]
    code = f"import time; from tammes.lab.cli import main; main({words}); print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert float(done.stdout.splitlines()[-1]) < 5, done.stderr
