"""Runs on imbalanced classes: weights and their switch, sampling, adjusted logits, metrics and advice."""

import json
import warnings

import numpy as np
import pytest
import torch

from tammes.lab.data import load
from tammes.lab.data.class_imbalance import imbalanced_sizes
from tammes.lab.training import Config, RunFolder, resolve, train
from tammes.lab.training.classifier import DataFacts, build_classifier, load_data
from tammes.lab.training.distributed import ALONE
from tammes.lab.training.engine import Engine
from tammes.lab.training.progress import imbalance_advice
from tammes.losses import effective_number_weights

LONG_TAILED = {"imbalance": "long_tailed:9", "epochs": 4}


def engine_of(config: Config) -> Engine:
    facts = DataFacts.of(load_data(resolve(config)))
    return Engine(resolve(config), build_classifier(resolve(config), facts), ALONE)


def test_effective_numbers_weigh_classes_by_the_formula():
    counts, beta = [5000, 300, 7], 0.999
    raw = [(1 - beta) / (1 - beta**n) for n in counts]
    expected = [3 * w / sum(raw) for w in raw]
    assert effective_number_weights(counts, beta=beta) == pytest.approx(expected)
    assert effective_number_weights(counts, beta=0.0) == (1.0, 1.0, 1.0)
    inverse = effective_number_weights(counts, beta=1 - 1e-9)
    assert [w * n for w, n in zip(inverse, counts, strict=True)] == pytest.approx(
        [inverse[0] * 5000] * 3, rel=1e-4
    )


def test_effective_numbers_refuse_what_makes_no_sense():
    with pytest.raises(ValueError, match="beta must be below 1"):
        effective_number_weights([5, 5], beta=1.0)
    with pytest.raises(ValueError, match="count of class 1 must be positive"):
        effective_number_weights([5, 0])


def test_deferred_weights_switch_on_at_their_share_of_the_run(settings, tmp_path):
    """18 steps; the weights of every step's loss are seen through the head."""
    config = settings(**LONG_TAILED, class_weights="effective", reweight_from=0.5, effective_beta=0.9)
    seen, step = [], Engine.step

    def note(self, batch, number):
        seen.append(self.head.class_weight.tolist())
        return step(self, batch, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "step", note)
        result = train(config, tmp_path / "run")
    late = pytest.approx(effective_number_weights(result["class_counts"], beta=0.9))
    half = len(seen) // 2
    assert len(seen) == result["steps"] > 4
    assert seen[: half - 1] == [[1.0] * 5] * (half - 1)
    assert all(weights == late for weights in seen[half + 1 :])


def test_class_weights_enter_the_loss_as_torch_weighs(settings):
    config = settings(**LONG_TAILED, objective="CE", class_weights="effective", lr=1e-9)
    engine = engine_of(config)
    engine.reweight(0.0)
    images, labels = torch.randn(9, 1, 10, 11), torch.arange(9) % 5
    logits = engine.classifier(images)
    weight = torch.tensor(effective_number_weights(engine.classifier.class_counts))
    expected = torch.nn.functional.cross_entropy(logits, labels, weight=weight)
    torch.testing.assert_close(engine.head(engine.classifier.backbone(images), labels), expected)


def test_logit_adjustment_subtracts_the_log_class_prior(settings):
    plain, adjusted = (
        engine_of(settings(**LONG_TAILED, objective="CE", logit_adjustment=tau)) for tau in (0.0, 1.5)
    )
    images = torch.randn(4, 1, 10, 11)
    shares = torch.tensor(adjusted.classifier.class_counts, dtype=torch.float64)
    expected = plain.classifier(images) - 1.5 * (shares / shares.sum()).log()
    torch.testing.assert_close(adjusted.classifier(images).double(), expected.double())
    embeddings = adjusted.classifier.backbone(images)
    assert torch.equal(adjusted.classifier.predict(embeddings), expected.argmax(1))


def test_the_record_keeps_counts_groups_and_calibration(settings, tmp_path):
    result = train(settings(**LONG_TAILED), tmp_path / "run")
    most = int(load(settings().data).class_counts.min())
    assert tuple(result["class_counts"]) == imbalanced_sizes(most, 5, "long_tailed", 9)
    metrics, arrays = result["metrics"], np.load(tmp_path / "run" / "margins.npz")
    assert metrics["mean_class_accuracy"] == pytest.approx(arrays["class_accuracy"].mean())
    few = arrays["class_accuracy"][arrays["class_count"] < 20]
    assert metrics["few"] == pytest.approx(few.mean())
    assert 0 <= metrics["ece"] <= 1
    assert json.loads((tmp_path / "run" / "data.json").read_text())["class_counts"] == result["class_counts"]


def test_balanced_classes_need_no_more_numbers(settings, tmp_path):
    metrics = train(settings(epochs=1), tmp_path / "run")["metrics"]
    assert not {"few", "medium", "many", "ece"} & set(metrics)


def test_confidence_is_the_largest_probability(settings, tmp_path):
    train(settings(**LONG_TAILED), tmp_path / "run")
    arrays = np.load(tmp_path / "run" / "margins.npz")
    classifier = RunFolder(tmp_path / "run").classifier()
    data = load_data(resolve(settings(**LONG_TAILED)))
    pixels = data.test.images.float() / 255
    images = (pixels - data.mean[0]) / data.std[0]
    with torch.no_grad():
        expected = classifier(images).softmax(1).amax(1)
    np.testing.assert_allclose(arrays["confidence"], expected, rtol=1e-4)


def test_settings_are_judged_on_held_out_training_images(settings, tmp_path):
    whole, held = (load_data(resolve(settings(imbalance="step:3", hold_out=share))) for share in (0.0, 0.25))
    assert len(held.test) + len(held.train) == len(whole.train)
    trained = {image.numpy().tobytes() for image in held.train.images}
    assert not trained & {image.numpy().tobytes() for image in held.test.images}
    result = train(settings(imbalance="step:3", hold_out=0.25), tmp_path / "run")
    assert sum(result["class_counts"]) == len(held.train)


def test_fewer_evaluations_leave_the_run_as_it_is(settings, tmp_path):
    every, third = (
        train(settings(epochs=7, evaluate_every=n), tmp_path / str(n), resume=True) for n in (1, 3)
    )
    assert every["metrics"] == third["metrics"]
    log = (tmp_path / "3" / "log.jsonl").read_text().splitlines()
    epochs = [record["epoch"] for record in map(json.loads, log) if record["kind"] == "epoch"]
    assert epochs == [2, 5, 6]


IMBALANCED_FACTS = DataFacts(
    name="made", classes=("a", "b"), shape=(1, 9, 9), mean=(0.5,), std=(0.5,), class_counts=(500, 5)
)


def test_imbalanced_data_without_a_remedy_gets_advice():
    advice = imbalance_advice(resolve(Config(data="made")), IMBALANCED_FACTS)
    assert advice is not None
    assert "100:1 (500 to 5 images)" in advice
    places = [advice.index(word) for word in ("--sampling balanced", "LDAM(s=30)", "--reweight-from 0.8")]
    assert places == sorted(places)
    assert "\n" not in advice


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "NormFace(s=5) + 100*R_w"},
        {"objective": "LDAM(s=30)"},
        {"sampling": "balanced"},
        {"class_weights": "effective"},
        {"logit_adjustment": 1.0},
        {"objective": 'LMSoftmax(s=5, reduction="lse")'},
        {"start": "first", "learns": "nothing", "tau": 0.7, "objective": "CE"},
    ],
)
def test_a_remedy_silences_the_advice(settings):
    assert imbalance_advice(resolve(Config(data="made", **settings)), IMBALANCED_FACTS) is None


def test_train_gives_the_advice_once_and_only_for_imbalanced_data(settings, tmp_path):
    with pytest.warns(UserWarning, match="Classes are imbalanced"):
        train(settings(**LONG_TAILED), tmp_path / "imbalanced")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(settings(epochs=1), tmp_path / "even")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"imbalance": "long_tailed:0.1"}, "at least 1, got 0.1"),
        ({"class_weights": "effective", "accumulate": 2}, "cannot be accumulated over accumulate=2"),
        ({"reweight_from": 0.8}, "needs class_weights"),
        ({"class_weights": "effective", "reweight_from": 1.0}, "weights would never apply"),
        ({"class_weights": "effective", "effective_beta": 1.0}, "effective_beta must be below 1"),
        ({"objective": "NormFace(s=5) - 3*R_w"}, "R_w must have a positive coefficient, got -3"),
        ({"hold_out": 1.5}, r"hold_out must lie in \[0, 1\]"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(data="digits", **changes)


def test_r_w_composes_with_each_remedy(settings, tmp_path):
    remedies = (
        {"sampling": "balanced"},
        {"class_weights": "effective", "reweight_from": 0.5},
        {"logit_adjustment": 1.0},
    )

    def centroid(name, objective, remedy):
        train(settings(**LONG_TAILED, objective=objective, **remedy), tmp_path / name)
        return (
            torch.nn.functional.normalize(RunFolder(tmp_path / name).weights()["head.weight"]).mean(0).norm()
        )

    for number, remedy in enumerate(remedies):
        plain = centroid(f"{number}-plain", "LDAM(s=5)", remedy)
        assert centroid(f"{number}-r_w", "LDAM(s=5) + 100*R_w", remedy) < plain / 3
