"""Folders of photos: the network that `--model auto` takes, and how it is fine-tuned."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image

from tammes.lab.data import Batches, OnDisk
from tammes.lab.training import Config, RunFolder, fine_tuning, resolve, train
from tammes.lab.training.classifier import DataFacts, build_classifier, load_data
from tammes.lab.training.config import read_resolved
from tammes.lab.training.distributed import ALONE
from tammes.lab.training.engine import Engine

LITE0 = "timm/tf_efficientnet_lite0"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of ten photos of 70 x 90 pixels: reddish and bluish noise."""
    folder, rng = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for kind, name in ((0, "red"), (2, "blue")):
        (folder / name).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 120, (70, 90, 3), dtype=np.uint8)
            pixels[..., kind] += 120
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return str(folder)


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(fine_tuning, "weights_installed", lambda: False)


def network(**settings):
    config = resolve(Config(**settings))
    return config.model, config.pretrained


def test_auto_is_a_pretrained_network_for_photos_alone(photos):
    assert network(data=photos) == (LITE0, "package")
    assert network(data="digits") == ("fastnet-half", None)
    scratch = resolve(Config(data=photos, from_scratch=True))
    assert (scratch.model, scratch.pretrained) == ("fastnet-half", None)
    assert (scratch.batch_size, scratch.epochs) == (32, 20)
    assert resolve(Config(data="digits")).batch_size == 128


def test_people_and_faces_keep_their_model(tmp_path):
    (tmp_path / "people" / "query").mkdir(parents=True)
    (tmp_path / "faces" / "ann").mkdir(parents=True)
    (tmp_path / "faces" / "pairs.txt").write_text("")
    assert network(data=str(tmp_path / "people")) == ("fastnet-half", None)
    assert network(data=str(tmp_path / "faces")) == ("fastnet-half", None)


def test_without_the_package_auto_trains_from_scratch_and_pretrained_downloads(photos, no_package):
    assert network(data=photos) == ("fastnet-half", None)
    assert network(data=photos, pretrained="timm") == (LITE0, "timm")


def test_fine_tuning_has_its_own_defaults_and_flags_override_them(photos):
    usual = resolve(Config(data=photos))
    assert (usual.lr, usual.prototype_lr, usual.batch_size, usual.epochs) == (5e-4, 5e-3, 32, 10)
    assert (usual.frozen_start, usual.augment_style) == (0.1, "photos")
    settings = {"lr": 1e-3, "batch_size": 8, "epochs": 2, "frozen_start": 0.0, "augment_style": "fast"}
    own = resolve(Config(data=photos, **settings))
    assert (own.lr, own.prototype_lr, own.batch_size, own.epochs) == (1e-3, 1e-2, 8, 2)
    assert (own.frozen_start, own.augment_style) == (0.0, "fast")
    with pytest.raises(ValueError, match="from_scratch contradicts pretrained='timm'"):
        Config(data=photos, from_scratch=True, pretrained="timm")


def test_cosines_of_photos_from_scratch_have_a_neck_and_fast_prototypes(photos):
    def defaults(**settings):
        config = resolve(Config(**settings))
        return config.neck, config.prototype_lr / config.lr

    assert defaults(data=photos, from_scratch=True) == (True, 10)
    assert defaults(data=photos, model="cnn4") == (True, 10)
    assert defaults(data=photos, from_scratch=True, objective="CE") == (False, 1)
    assert defaults(data=photos, from_scratch=True, neck=False, prototype_lr=2e-3) == (False, 1)
    assert defaults(data=photos) == (False, 10)
    assert defaults(data="digits") == (False, 1)
    assert defaults(data="digits", neck=True) == (True, 1)


def test_a_second_stage_has_the_neck_of_the_first(photos, tmp_path):
    common = {"data": photos, "model": "cnn4", "image_size": 12, "epochs": 1, "workers": 0}
    train(Config(**common), tmp_path / "first")
    later = Config(**common, objective="CE", start=str(tmp_path / "first"), learns="prototypes")
    assert resolve(later).neck
    train(later, tmp_path / "second")
    assert RunFolder(tmp_path / "second").config.neck


def test_a_run_from_before_keeps_its_defaults(photos, tmp_path):
    """Its file says that there is no neck, and what the learning rate of the prototypes is."""
    path = tmp_path / "config.json"
    stored = json.loads(resolve(Config(data=photos, from_scratch=True)).to_json())
    stored["neck"] = False
    stored["resolved"] = {n: v for n, v in stored["resolved"].items() if n != "neck"} | {"prototype_lr": 2e-3}
    path.write_text(json.dumps(stored))
    config = read_resolved(path)
    assert (config.neck, config.prototype_lr) == (False, 2e-3)


def test_photos_come_as_the_pretrained_network_expects_them(photos):
    dataset = load_data(resolve(Config(data=photos)))
    assert (dataset.mean, dataset.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert dataset.shape == (3, 96, 96)  # the next multiple of 32 above 70
    assert isinstance(dataset.train, OnDisk)
    assert dataset.augmentation.trivial
    assert load_data(resolve(Config(data=photos, from_scratch=True))).shape == (
        3,
        70,
        90,
    )
    assert load_data(resolve(Config(data=photos, image_size=64))).shape == (3, 64, 64)


@pytest.mark.parametrize(("style", "crop"), [("standard", 0.08), ("photos", 0.25)])
def test_random_crops_work_on_small_folders_and_lists(photos, tmp_path, style, crop):
    for split in ("train", "test"):
        (tmp_path / f"some_{split}.txt").write_text("red/0.png 0\nblue/0.png 1\n")
    for data in (photos, str(tmp_path / "some_train.txt")):
        config = Config(data=data, data_root=photos, augment_style=style, from_scratch=True, image_size=16)
        dataset = load_data(resolve(config))
        assert (dataset.augmentation.crop, dataset.augmentation.flip) == (crop, True)
        batch = next(iter(Batches(dataset, batch_size=2, training=True, workers=0).epoch(0)))
        assert batch.images.shape == (2, 3, 16, 16)


def test_a_cpu_gets_smaller_images_and_an_accelerator_the_networks_own():
    assert fine_tuning.pretrained_side(224, "cpu") == 128
    assert fine_tuning.pretrained_side(224, "cuda") == 224
    assert fine_tuning.pretrained_side(96, "cpu") == 96


def test_augmentation_follows_from_seed_and_epoch_alone(photos):
    dataset = load_data(resolve(Config(data=photos, image_size=64)))

    def images(workers, epoch=0, seed=0):
        torch.rand(3)
        options = {"batch_size": 16, "training": True, "seed": seed, "workers": workers}
        return next(iter(Batches(dataset, **options).epoch(epoch))).images

    first = images(0)
    state = torch.get_rng_state()
    assert torch.equal(first, images(1))
    assert not torch.equal(first, images(0, seed=1))
    torch.set_rng_state(state)
    images(0)
    torch.set_rng_state(state)
    torch.rand(3)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    images(0)
    assert torch.equal(torch.get_rng_state(), after)  # the global generator moved by our own draw alone


def test_the_backbone_is_frozen_at_first_and_learns_slower_than_the_prototypes(photos):
    config = resolve(Config(data=photos, image_size=64, batch_size=4))
    dataset = load_data(config)
    engine = Engine(config, build_classifier(config, DataFacts.of(dataset)), ALONE)
    batch = next(iter(Batches(dataset, batch_size=4, training=True, workers=0).epoch(0)))
    before = {name: value.clone() for name, value in engine.classifier.state_dict().items()}
    engine.freeze(0.0)
    engine.step(batch, 0)
    moved = [name for name, value in engine.classifier.state_dict().items() if not value.equal(before[name])]
    assert moved == ["head.weight"]
    engine.freeze(0.1)
    engine.step(batch, 1)
    assert not engine.classifier.state_dict()["backbone.net.conv_stem.weight"].equal(
        before["backbone.net.conv_stem.weight"]
    )
    rates = [group["peak_lr"] for group in engine.optimizer.param_groups]
    assert rates == [5e-4, 5e-3]


def test_a_fine_tuned_run_is_stored_resumed_and_evaluated_at_its_size(photos, tmp_path):
    from tammes.lab.inference.run_evaluation import evaluate_run

    config = Config(data=photos, epochs=2, batch_size=8, image_size=64, workers=0)
    done = train(config, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.config == resolve(config)
    assert done["metrics"]["accuracy"] >= 0.5
    assert train(config, tmp_path / "run", resume=True)["metrics"] == done["metrics"]
    assert evaluate_run(folder).numbers()["accuracy"] == done["metrics"]["accuracy"]


def test_old_runs_keep_their_image_size(photos, tmp_path):
    """The default size of photos was 128 once: what a run has seen is in its folder, not in the defaults."""
    from tammes.lab.inference.run_evaluation import evaluate_run

    config = Config(data=photos, model="cnn4", epochs=1, batch_size=8)
    dataset = load_data(resolve(dataclasses.replace(config, image_size=40)))
    result = train(config, tmp_path / "run", dataset=dataset)
    again = evaluate_run(RunFolder(tmp_path / "run"))  # fails where the images come at 70 x 90
    assert again.numbers()["accuracy"] == result["metrics"]["accuracy"]


def test_a_run_keeps_its_choice_when_weights_are_installed_later(photos, tmp_path, monkeypatch):
    config = Config(data=photos)
    with monkeypatch.context() as without:
        without.setattr(fine_tuning, "weights_installed", lambda: False)
        (tmp_path / "config.json").write_text(resolve(config).to_json())
    stored = RunFolder(tmp_path).config
    assert (stored.model, stored.pretrained, stored.epochs) == ("fastnet-half", None, 20)


def test_a_wrong_model_is_told_before_the_data_is_read(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("tammes.lab.training.loop.load_data", lambda *_: pytest.fail("the data was read"))
    with pytest.raises(ValueError, match="Unknown model 'cnn5'"):
        train(Config(data=photos, model="cnn5"), tmp_path / "a")
    with pytest.raises(ValueError, match="timm has no model 'resnet5'"):
        train(Config(data=photos, model="timm/resnet5"), tmp_path / "b")
    with pytest.raises(ValueError, match=r"must be a \.safetensors file"):
        train(Config(data=photos, pretrained="weights.bin"), tmp_path / "c")
