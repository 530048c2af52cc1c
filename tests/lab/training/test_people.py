"""Training on people seen by cameras, measured by retrieval."""

import numpy as np
import pytest
import torch

from tammes.heads import PrototypeHead
from tammes.lab.data import Batch, Batches, load
from tammes.lab.inference.run_evaluation import evaluate_run
from tammes.lab.models import build
from tammes.lab.recipes.presets import PRESETS, preset_settings
from tammes.lab.training import Classifier, Config, RunFolder, resolve, train
from tammes.lab.training.distributed import ALONE
from tammes.lab.training.engine import Engine
from tammes.lab.training.evaluation import Classification, ReIdentification, protocol
from tammes.losses import NormFace
from tammes.losses.triplet import batch_hard_triplet
from tammes.metrics.reranking import k_reciprocal_distances
from tammes.metrics.retrieval import Shots, retrieval_metrics, retrieval_metrics_of_scores


@pytest.fixture
def config(people):
    def make(**changes) -> Config:
        short = {"data": str(people), "image_size": 24, "model": "cnn4", "embedding": 8, "epochs": 6}
        short |= {"batch_size": 12, "images_per_person": 3, "sampling": "identities", "lr": 0.01}
        short |= {"neck": True, "triplet": 1.0, "objective": "NormFace(s=10)"}
        return Config(**(short | changes))

    return make


def test_a_run_on_people_is_measured_by_retrieval(config, tmp_path):
    result = train(config(), tmp_path / "run")
    metrics = result["metrics"]
    assert {"mAP", "rank1", "rank5", "rank10", "mINP", "class_margin_deg"} <= set(metrics)
    assert "accuracy" not in metrics
    assert metrics["mAP"] > 0.6  # chance is below 0.3
    assert result["best"]["mAP"] >= metrics["mAP"]
    assert evaluate_run(RunFolder(tmp_path / "run")).numbers() == metrics


def test_the_numbers_are_those_of_the_protocol(config, tmp_path):
    train(config(epochs=1), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    dataset, net = load(folder.config.data, image_size=24), folder.classifier()
    with torch.no_grad():
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (dataset.mean, dataset.std))
        z = net.backbone((dataset.test.images / 255 - mean) / std)
    q = dataset.queries
    asked, held = (Shots(dataset.test.labels[p], dataset.cameras[p]) for p in (slice(q), slice(q, None)))
    expected = {
        ("cosine", False): retrieval_metrics(z[:q], z[q:], asked, held),
        ("euclidean", False): retrieval_metrics(z[:q], z[q:], asked, held, metric="euclidean"),
        ("cosine", True): retrieval_metrics_of_scores(-k_reciprocal_distances(z[:q], z[q:]), asked, held),
    }
    for (metric, rerank), one in expected.items():
        found = evaluate_run(folder, ranking={"metric": metric, "rerank": rerank}).numbers()
        assert {name: found[name] for name in one.numbers()} == pytest.approx(one.numbers(), abs=1e-6)


def test_training_images_are_measured_as_known_classes(config, tmp_path):
    train(config(epochs=1), tmp_path / "run")
    assert "accuracy" in evaluate_run(RunFolder(tmp_path / "run"), split="train").numbers()


def test_examples_are_the_best_and_the_worst_lists(config, tmp_path):
    train(config(epochs=1), tmp_path / "run")
    with np.load(tmp_path / "run" / "margins.npz") as arrays:
        precision, chosen = arrays["average_precision"], arrays["example"]
        assert len(chosen) == 8
        shown = np.sort(precision)
        assert sorted(precision[chosen].tolist()) == pytest.approx([*shown[:4], *shown[-4:]])
        assert arrays["example_picture"].shape == (8, 11, 24, 12, 3)
        assert arrays["example_right"].shape == (8, 10)
        places, right = arrays["first_rank"][chosen], arrays["example_right"]
        for place, row in zip(places.tolist(), right.tolist(), strict=True):
            assert row[: place - 1] == [0] * min(place - 1, 10)
            assert place > 10 or row[place - 1] == 1


class PowerCutError(Exception):
    """Stands for a power cut."""


def test_a_resumed_run_ends_the_same(config, tmp_path):
    short = config(epochs=3, log_every=1, checkpoint_seconds=1e-6)

    def cut(record) -> None:
        if record["step"] == 6:
            raise PowerCutError

    whole = train(short, tmp_path / "whole")
    with pytest.raises(PowerCutError):
        train(short, tmp_path / "cut", sinks=[cut])
    resumed = train(short, tmp_path / "cut", resume=True)
    assert resumed["metrics"] == whole["metrics"]
    one, other = (RunFolder(tmp_path / name).weights() for name in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_triplet_loss_acts_before_the_neck_and_adds_up():
    torch.manual_seed(0)
    net = build("cnn4", in_channels=1, image_size=12, embedding=6, neck=True)
    classifier = Classifier(net, PrototypeHead(6, 3, NormFace(scale=10)))
    images, labels = torch.randn(12, 1, 12, 12), torch.arange(12) % 3
    before = net.before_neck(images)
    expected = classifier.head(net(images), labels) + 0.5 * batch_hard_triplet(before, labels).mean()
    config = Config(data="digits", neck=True, triplet=0.5, objective="NormFace(s=10)", lr=1e-9)
    engine = Engine(resolve(config), classifier, ALONE)
    loss = engine.step(Batch(images, labels, torch.arange(12)), 0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert engine.terms["triplet"].item() == pytest.approx(batch_hard_triplet(before, labels).mean().item())


def test_kinds_of_data_have_their_protocols(people):
    digits, folk = load("digits"), load(people, image_size=24)
    for dataset, kind in ((digits, Classification), (folk, ReIdentification)):
        batches = Batches(dataset, "test", batch_size=8, training=False)
        assert isinstance(protocol(dataset, batches), kind)


def test_presets_are_configs():
    for name in PRESETS:
        config = Config(**preset_settings(name))
        assert config.batch_size % config.images_per_person == 0
    paper = Config(**preset_settings("reid-paper"))
    # Luo et al., configs/softmax_triplet.yml: 10 epochs of warm-up, rate divided at epoch 40.
    assert paper.warmup * paper.epochs == pytest.approx(10)
    assert [m * paper.epochs for m in paper.milestones] == pytest.approx([40])
    with pytest.raises(ValueError, match=r"Unknown preset 'reid-lapto'. Did you mean reid-laptop\?"):
        preset_settings("reid-lapto")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"last_stride": 3}, "last_stride must be 1 or 2, got 3"),
        ({"triplet": 1.0, "mixup": 0.2}, "The triplet loss needs hard labels, got mixup=0.2"),
        ({"triplet": -1.0}, "triplet must lie in"),
        ({"images_per_person": 0}, "images_per_person must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(data="digits", **changes)
