"""The experiments on speakers and animals: their adapters, and complete runs on small synthetic data."""

import json
import logging
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.io import wavfile
from torch.utils.data import TensorDataset

from tammes import PrototypeHead
from tammes.losses import ArcFace

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py")))


@pytest.fixture(scope="module")
def speakers():
    return example("speakers")


def test_a_projection_returns_logits_and_loss_and_takes_a_margin(speakers):
    """As WeSpeaker's executor uses it: `outputs, loss = projection(embeddings, targets)`, then `update`."""
    projection = speakers.Projection(8, 5, ArcFace(scale=16, margin=0.0))
    z, y = torch.randn(6, 8, requires_grad=True), torch.arange(6) % 5
    logits, loss = projection(z, y)
    assert logits.shape == (6, 5)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, y))
    projection.update(margin=0.3)
    assert projection.margin == 0.3
    assert projection.head.objective == ArcFace(scale=16, margin=0.3)
    assert projection(z, y)[1] > loss


def test_the_criterion_is_the_loss_of_its_cosines(speakers):
    """SpeechBrain's classifier gives (n, 1, k), its targets are (n, 1)."""
    head = PrototypeHead(8, 5, ArcFace(scale=30, margin=0.2))
    z, y = torch.randn(6, 8), torch.arange(6) % 5
    criterion = speakers.Criterion(ArcFace(scale=30, margin=0.2))
    found = criterion(head.cosines(z)[:, None], y[:, None], length=torch.ones(6))
    torch.testing.assert_close(found, head(z, y))


def test_an_epoch_of_wespeaker_trains_the_projection_and_raises_its_margin(speakers):
    reason = "WeSpeaker is not on PyPI; install it from its repository"
    executor = pytest.importorskip("wespeaker.utils.executor", reason=reason)
    schedulers = pytest.importorskip("wespeaker.utils.schedulers", reason=reason)
    torch.manual_seed(0)
    labels = torch.arange(40) % 5
    batch = {"key": None, "label": labels, "feat": torch.eye(8)[labels] + 0.1 * torch.randn(40, 8)}
    model = torch.nn.Linear(8, 8)
    model.projection = speakers.Projection(8, 5, ArcFace(scale=16, margin=0.0))
    before = model.projection(model(batch["feat"]), labels)[1].item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lr = schedulers.ExponentialDecrease(optimizer, 2, 10, 0.1, 0.01)
    margin = schedulers.MarginScheduler(model, 10, 1, 2, 0.0, 0.2, True)
    configs = {"dataset_args": {"cmvn": False}, "enable_amp": False, "log_batch_interval": 5}
    wrapped, scaler = torch.nn.DataParallel(model), torch.amp.GradScaler(enabled=False)
    logger = logging.getLogger(__name__)
    for epoch in (1, 2):
        executor.run_epoch(
            [batch] * 10, 10, wrapped, None, optimizer, lr, margin, epoch, logger, scaler, "cpu", configs
        )
    assert model.projection.margin == margin.get_margin() == 0.2
    model.projection.update(margin=0.0)
    assert model.projection(model(batch["feat"]), labels)[1].item() < before


def test_the_criterion_is_speechbrains(speakers):
    reason = "SpeechBrain is not part of the dev extra"
    losses = pytest.importorskip("speechbrain.nnet.losses", reason=reason)
    cosines, targets = torch.rand(50, 1, 7) * 2 - 1, torch.randint(7, (50, 1))
    theirs = losses.LogSoftmaxWrapper(losses.AdditiveAngularMargin(margin=0.2, scale=30))
    ours = speakers.Criterion(ArcFace(scale=30, margin=0.2))
    torch.testing.assert_close(ours(cosines, targets), theirs(cosines, targets), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def voices(tmp_path_factory):
    """Twelve people who hum: each a pitch of their own, at 8 kHz, with noise."""
    root, rng = tmp_path_factory.mktemp("voices") / "data", np.random.default_rng(0)
    for person in range(12):
        (root / f"{person:02d}").mkdir(parents=True)
        for digit in range(3):
            for number in (0, 1):
                time = np.arange(4000 + 500 * digit) / 8000
                wave = np.sin(2 * np.pi * (150 + 90 * person) * time) + 0.3 * rng.normal(size=len(time))
                file = root / f"{person:02d}" / f"{digit}_{person:02d}_{number}.wav"
                wavfile.write(file, 8000, (8000 * wave).astype(np.int16))
    return root


def test_log_mel_energies_peak_at_the_pitch(speakers, voices):
    filters = speakers.mel_filters()
    assert filters.shape == (40, 201)
    assert (filters.sum(1) > 0).all()
    wavfile_at = voices / "11" / "0_11_0.wav"
    assert speakers.log_mel(wavfile_at, filters).shape == (40, 64)
    low, high = (filters @ (torch.linspace(0, 8000, 201) == hertz).float() for hertz in (160, 1120))
    assert low.argmax() < high.argmax()


def test_the_speaker_experiment_runs_resumes_and_keeps_the_head(speakers, voices, tmp_path, capsys):
    out = tmp_path / "speakers.json"
    speakers.main(str(voices), str(out), epochs=1, held_out=2)
    record = json.loads(out.read_text())
    assert len(record["runs"]) == 15
    assert set(record["summary"]) == {"softmax", "AAM-Softmax", "LM-Softmax"}
    held = [set(run["held_out"]) for key, run in record["runs"].items() if key.startswith("softmax")]
    assert len(set.union(*held)) == 10  # nobody is held out twice
    assert set(record["changed_speakers"]) == {"kept", "fresh"}
    first = out.read_text()
    capsys.readouterr()
    speakers.main(str(voices), str(out), epochs=1, held_out=2)
    assert "split" not in capsys.readouterr().out  # nothing was trained again
    assert out.read_text() == first


@pytest.fixture(scope="module")
def wildlife():
    return example("wildlife")


def faces_of(wildlife):
    torch.manual_seed(0)
    labels = torch.arange(60) % 3
    features = torch.randn(60, 2, 16) + 8 * torch.eye(16)[labels][:, None]
    rows = torch.randperm(60)
    splits = [(rows[10 * i :], rows[: 10 * i]) for i in (1, 2)]
    return wildlife.Faces(features, labels, ["a", "b", "c"], splits)


def test_the_wildlife_experiment_learns_and_is_recorded(wildlife, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(wildlife.main.__globals__, "load", lambda root, cache: faces_of(wildlife))
    out = tmp_path / "wildlife.json"
    wildlife.main("nowhere", str(out), seeds=1, epochs=40)
    record = json.loads(out.read_text())
    assert len(record["runs"]) == 10
    assert all(row["accuracy"] > 0.8 for row in record["summary"].values())
    apart = record["summary"]["ArcFace"]["against softmax"]
    assert apart["interval"][0] <= apart["mean"] <= apart["interval"][1]


def test_splits_of_matlab_count_from_one(wildlife):
    assert wildlife._indices(np.array([[1], [3]], np.uint16)).tolist() == [0, 2]


def test_a_trainer_of_wildlife_tools_takes_a_head(wildlife):
    pytest.importorskip("wildlife_tools", reason="wildlife-tools is not part of the dev extra")
    faces = faces_of(wildlife)
    model, head = torch.nn.Linear(16, 8), PrototypeHead(8, 3, "ArcFace(s=8, m=0.2)")
    before = head(model(faces.features[:, 0]), faces.labels).item()
    wildlife.trainer(TensorDataset(faces.features[:, 0], faces.labels), model, head, epochs=3).train()
    assert head(model(faces.features[:, 0]), faces.labels).item() < before
