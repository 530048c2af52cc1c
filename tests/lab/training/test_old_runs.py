"""Runs of the first version (config.json of format 1, checkpoints without checksums) still work.

The code of commit abc888e wrote `old_runs`: `finished` to its end, and `interrupted`, the same run stopped
after step 6 of 12.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tammes.lab.cli import main
from tammes.lab.training import Config, RunFolder, read_config, train
from tammes.lab.training.config import with_new_names

STORED = Path(__file__).parent / "old_runs"
ASKED = {"model": "perceptron", "objective": "NormFace(s=8) + 0.5*R_sm", "optimizer": "sgd", "epochs": 4}


@pytest.fixture
def old(tmp_path, monkeypatch, perceptron) -> Path:
    """A copy of the old runs; their data is named relative to it."""
    shutil.copytree(STORED, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def assert_same_result(one: RunFolder, other: RunFolder) -> None:
    a, b = one.finished(), other.finished()
    assert a["metrics"] == pytest.approx(b["metrics"], rel=1e-5)
    settings = with_new_names(b["config"])  # newer versions have more
    assert (a["steps"], {name: a["config"][name] for name in settings}) == (b["steps"], settings)
    for name, value in other.weights().items():
        torch.testing.assert_close(one.weights()[name], value, rtol=1e-4, atol=1e-6)


def test_the_stored_runs_are_old():
    for run in ("finished", "interrupted"):
        assert json.loads((STORED / run / "config.json").read_text())["format"] == 1
        (checkpoint,) = RunFolder(STORED / run).checkpoints()
        assert sorted(path.name for path in checkpoint.iterdir()) == ["state.pt", "weights.safetensors"]


def test_an_old_run_resumes_to_the_end_its_own_version_reached(old):
    assert main(["train", "--resume", "--out", "interrupted"]) == 0
    assert_same_result(RunFolder(old / "interrupted"), RunFolder(old / "finished"))


def test_the_settings_it_was_started_with_resume_it_too(old):
    config = Config(data="stripes.npz", batch_size=12, log_every=2, **ASKED)
    train(config, "interrupted", resume=True)
    assert_same_result(RunFolder(old / "interrupted"), RunFolder(old / "finished"))
    assert train(config, "finished", resume=True) == RunFolder(old / "finished").result


def test_other_settings_are_refused(old):
    config = Config(data="stripes.npz", batch_size=12, log_every=2, lr=0.2, **ASKED)
    with pytest.raises(ValueError, match=r"lr=0\.1, not 0\.2; prototype_lr=0\.1, not 0\.2"):
        train(config, "interrupted", resume=True)


def test_an_old_run_is_evaluated(old, capsys):
    assert main(["evaluate", "finished", "--json"]) == 0
    found, stored = json.loads(capsys.readouterr().out), RunFolder(old / "finished").finished()["metrics"]
    for name in ("accuracy", "class_margin_deg", "sample_margin"):
        assert found[name] == pytest.approx(stored[name], rel=1e-5)


def test_old_runs_are_reported_and_compared_with_new_ones(old, capsys, monkeypatch):
    monkeypatch.setattr("tammes.lab.report.sample_map.project", lambda points: points[:, :2])
    words = ["--config", "finished/config.json", "--seed", "1", "--out", "new"]
    assert main(["train", *words]) == 0
    assert RunFolder(old / "new").config.asked == replace(read_config("finished/config.json"), seed=1)
    assert main(["report", "finished", "new", "--out", "page.html"]) == 0
    assert "<td>finished</td>" in (old / "page.html").read_text()
    capsys.readouterr()
    assert main(["compare", "finished", "new"]) == 0
    head, *_ = capsys.readouterr().out.splitlines()
    assert " seed " in head
