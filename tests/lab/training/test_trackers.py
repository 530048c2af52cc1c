"""Trackers with the real packages, offline: the numbers that arrive are the log's, also after a resume."""

import dataclasses
import json
import sys
from typing import get_args

import pytest

from tammes.lab.training import Config
from tammes.lab.training.trackers import TRACKERS, scalars

STEP = {"kind": "step", "step": 3, "loss": 0.5, "terms": {"CosFace": 0.25}, "note": "text", "lr": 0.1}
EPOCH = {"kind": "epoch", "step": 5, "epoch": 1, "accuracy": 0.75}


def test_every_choice_of_the_flag_is_a_tracker():
    (choices,) = [field.type for field in dataclasses.fields(Config) if field.name == "track"]
    assert set(get_args(choices)) == {"none", *TRACKERS}


def test_scalars_are_the_numbers_of_a_record():
    assert scalars(STEP) == {"step/loss": 0.5, "step/CosFace": 0.25, "step/lr": 0.1}
    assert scalars(EPOCH) == {"epoch/epoch": 1, "epoch/accuracy": 0.75}


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_missing_package_is_named_with_its_extra(name, module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf'not installed.*pip install "tammes\[{name}\]"'):
        TRACKERS[name](tmp_path, 0, {})


def send(name, folder, *records):
    folder.mkdir(exist_ok=True)
    sink = TRACKERS[name](folder, 0, {"seed": 1, "lr": None})
    for record in records:
        sink(record)
    sink.close()


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    send("tensorboard", tmp_path / "run", STEP, EPOCH)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("epoch/accuracy")] == [(5, 0.75)]
    assert [(e.step, e.value) for e in events.Scalars("step/CosFace")] == [(3, 0.25)]


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="too large for the dev extra: pip install 'tammes[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    send("wandb", tmp_path / "run", STEP)
    send("wandb", tmp_path / "run", EPOCH)  # resumed: the same run of the tracker
    wandb.teardown()  # its service writes the last records after `finish` has returned
    folders = list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    number = (tmp_path / "run" / "wandb-run").read_text()
    assert folders
    assert all(folder.name.endswith(number) for folder in folders)
    assert any(b"accuracy" in file.read_bytes() for folder in folders for file in folder.glob("*.wandb"))


def test_mlflow_in_a_local_store(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="too large for the dev extra: pip install 'tammes[mlflow]'")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    send("mlflow", tmp_path / "run", STEP)
    send("mlflow", tmp_path / "run", EPOCH)
    client = MlflowClient(f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    run = (tmp_path / "run" / "mlflow-run").read_text()
    assert [(m.step, m.value) for m in client.get_metric_history(run, "epoch/accuracy")] == [(5, 0.75)]
    assert [(m.step, m.value) for m in client.get_metric_history(run, "step/loss")] == [(3, 0.5)]
    assert client.get_run(run).data.params == {"seed": "1", "lr": "None"}
    assert client.get_run(run).info.status == "FINISHED"
    assert json.dumps(client.get_run(run).info.run_name) == '"run"'
