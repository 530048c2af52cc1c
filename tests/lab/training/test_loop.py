import dataclasses
import functools
import math
import time

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from tammes.lab.data import Batches, InMemory, load
from tammes.lab.models.fastnet import FastNet
from tammes.lab.training import NonFiniteLossError, RunFolder, classifier, resolve, train
from tammes.lab.training.classifier import DataFacts, build_classifier
from tammes.lab.training.distributed import ALONE, determinism
from tammes.lab.training.engine import Engine, learning_rate
from tammes.lab.training.loop import batches_of
from tammes.lab.training.monitor import read_log
from tammes.lab.training.run_folder import read_tensors
from tammes.losses import MixedLabels, parse


def weights_of(path):
    return RunFolder(path).weights()


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def engine_of(config) -> Engine:
    data, config = load(config.data), resolve(config)
    return Engine(config, build_classifier(config, DataFacts.of(data)), ALONE)


def first_batch(config):
    return next(batches_of(resolve(config), load(config.data), ALONE)[0].epoch(0))


def test_a_run_learns_and_leaves_a_complete_folder(settings, tmp_path):
    config = settings(epochs=12, model="cnn4", objective="NormFace(s=8) + 0.5*R_sm")
    result = train(config, tmp_path / "run")
    assert result["metrics"]["accuracy"] > 0.9
    folder = RunFolder(tmp_path / "run")
    names = {path.name for path in folder.path.iterdir()} - {path.name for path in folder.checkpoints()}
    assert names == {
        "config.json",
        "data.json",
        "log.jsonl",
        "result.json",
        "margins.npz",
        "best.safetensors",
    }
    assert (
        folder.checkpoints()[0].name == "checkpoint-00012-000000072"
    )  # a slow machine leaves one more, by the clock
    stored = folder.result
    assert stored is not None
    for word in ("config", "seed", "versions", "machine", "date", "seconds", "metrics", "best"):
        assert stored[word] == (result | {"config": stored["config"]})[word]
    arrays = np.load(tmp_path / "run" / "margins.npz")
    assert arrays["sample_margin"].mean() == pytest.approx(result["metrics"]["sample_margin"])
    assert (arrays["label"] == arrays["prediction"]).mean() == result["metrics"]["accuracy"]


def test_the_same_config_gives_the_same_run_and_another_seed_another(settings, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(settings(model="dropout", seed=seed), tmp_path / name)
    a, b, c = (weights_of(tmp_path / name) for name in "abc")
    assert same(a, b)
    assert not any(torch.equal(a[name], c[name]) for name in a if name.endswith("weight"))


def test_the_record_of_a_config_runs_again_to_the_same_numbers(settings, tmp_path):
    result = train(settings(), tmp_path / "a")
    again = train(RunFolder(tmp_path / "a").config.asked, tmp_path / "b")
    assert again["metrics"] == result["metrics"]


def test_parts_of_a_batch_add_up_to_the_whole(settings, tmp_path):
    """16 samples in 3 uneven parts, all terms that are means over samples, and R_w."""
    objective = "CosFace(s=8, m=0.2) + 0.5*R_sm + 10*R_w"
    for name, parts in (("whole", 1), ("parts", 3)):
        train(settings(objective=objective, accumulate=parts), tmp_path / name)
    whole, parts = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-4, atol=1e-5)


def test_mixup_mixes_neighbors_and_their_labels(settings):
    config = settings(mixup=0.4, lr=1e-6)
    engine, batch = engine_of(config), first_batch(config)
    lam = float(np.random.default_rng([0, 5]).beta(0.4, 0.4))
    mixed = lam * batch.images + (1 - lam) * batch.images.roll(1, 0)
    labels = MixedLabels(batch.labels, batch.labels.roll(1), lam)
    with torch.no_grad():
        expected = engine.classifier.head(engine.classifier.backbone(mixed), labels)
    assert engine.step(batch, 5).item() == pytest.approx(expected.item(), rel=1e-5)


def test_clipping_bounds_the_step(settings):
    config = settings(clip=0.01, lr=1.0, momentum=0.0, weight_decay=0.0, unit_prototypes=False)
    engine, batch = engine_of(config), first_batch(config)
    before = [p.detach().clone() for p in engine.classifier.parameters()]
    engine.set_rates(1.0)
    engine.step(batch, 0)
    pairs = zip(engine.classifier.parameters(), before, strict=True)
    moved = sum((p.detach() - q).square().sum() for p, q in pairs)
    assert math.sqrt(float(moved)) == pytest.approx(0.01, rel=1e-3)


def test_prototypes_have_their_own_learning_rate(settings):
    config = settings(lr=1e-9, prototype_lr=0.5, momentum=0.0)
    engine, batch = engine_of(config), first_batch(config)
    backbone, weight = next(engine.classifier.backbone.parameters()), engine.classifier.head.weight
    before = backbone.detach().clone(), weight.detach().clone()
    engine.set_rates(0.5)
    engine.step(batch, 0)
    assert (backbone - before[0]).abs().max() < 1e-7
    assert (weight - before[1]).abs().max() > 1e-3
    assert [group["lr"] for group in engine.optimizer.param_groups] == [0.5e-9, 0.25]


def test_biases_of_batch_norms_have_their_own_learning_rate(settings):
    def moved(factor):
        config = settings(model="fastnet-half", weight_decay=0.01, momentum=0.0, norm_bias_factor=factor)
        engine = engine_of(config)
        before = {name: p.detach().clone() for name, p in engine.classifier.named_parameters()}
        engine.set_rates(1.0)
        engine.step(first_batch(config), 0)
        groups = [(group["lr"], group["weight_decay"]) for group in engine.optimizer.param_groups]
        return groups, {n: p.detach() - before[n] for n, p in engine.classifier.named_parameters()}

    (usual, plain), (groups, fast) = moved(1.0), moved(4.0)
    assert groups == [*usual, (0.4, 0.0025)]
    biases = [name for name in plain if name.startswith("backbone.groups") and name.endswith("bias")]
    assert len(biases) == 6
    assert all(plain[name].count_nonzero() for name in biases)
    for name, step in plain.items():
        torch.testing.assert_close(fast[name], 4 * step if name in biases else step)


def test_fast_biases_need_batch_norms(settings):
    with pytest.raises(
        ValueError, match=r"batch norms, but Perceptron has none with a trainable bias\. Leave"
    ):
        engine_of(settings(norm_bias_factor=4.0))


def test_prototypes_that_do_not_learn_do_not_move(settings, tmp_path):
    config = settings(trainable_prototypes=False)
    start = engine_of(config).classifier.head.weight.detach().clone()
    train(config, tmp_path / "run")
    assert torch.equal(weights_of(tmp_path / "run")["head.weight"], start)


def test_prototypes_may_start_as_a_linear_layer_does(settings):
    facts = DataFacts(
        name="some", classes=tuple(map(str, range(50))), shape=(1, 8, 8), mean=(0.0,), std=(1.0,),
        class_counts=(1,) * 50,
    )  # fmt: skip
    weight = build_classifier(resolve(settings(prototype_init="linear")), facts).head.weight
    bound = weight.shape[1] ** -0.5
    assert 0.9 * bound < weight.abs().max() <= bound


def test_standard_augmentation_is_refused_where_none_is_defined(settings, tmp_path):
    with pytest.raises(ValueError, match=r"augment_style='standard' is defined for mnist, .* got data="):
        train(settings(augment_style="standard"), tmp_path)


def test_unit_prototypes_stay_at_norm_1_and_others_need_not(settings, tmp_path):
    train(settings(objective="NormFace(s=8)"), tmp_path / "unit")
    train(settings(objective="NormFace(s=8)", unit_prototypes=False), tmp_path / "free")
    unit, free = (weights_of(tmp_path / name)["head.weight"].norm(dim=1) for name in ("unit", "free"))
    torch.testing.assert_close(unit, torch.ones(5))
    assert (free > 1.001).all()  # gradients at right angles make free prototypes longer


def test_margins_warm_up_by_the_epoch(settings):
    engine = engine_of(settings(objective="CosFace(s=8, m=0.4) + 0.5*R_sm", margin_warmup=2.5))
    seen = []
    for epoch in range(4):
        engine.begin_epoch(epoch)
        seen.append(engine.classifier.head.objective)
    margins = (0.0, 0.4 / 2.5, 0.8 / 2.5, 0.4)
    assert [o.weighted_terms[0][1].margin for o in seen] == pytest.approx(margins)
    assert seen[-1] == parse("CosFace(s=8, m=0.4) + 0.5*R_sm")


def test_a_compiled_run_with_a_margin_warm_up_compiles_at_most_two_graphs(settings, tmp_path, monkeypatch):
    counter = CompileCounter()  # counts graphs and runs them without a C++ compiler
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    torch.compiler.reset()
    config = settings(
        model="cnn4", epochs=4, compile=True, objective="CosFace(s=8, m=0.4) + 0.5*R_sm", margin_warmup=3.0
    )
    train(config, tmp_path / "run")
    assert 1 <= counter.frame_count <= 2


@pytest.mark.parametrize("autocast", ["bf16", "fp16"])
def test_half_precision_steps_nearly_the_same_way(settings, autocast):
    moved = {}
    for kind in ("none", autocast):
        config = settings(autocast=kind, momentum=0.0, lr=0.01)
        engine, batch = engine_of(config), first_batch(config)
        before = torch.cat([p.detach().flatten().clone() for p in engine.classifier.parameters()])
        engine.set_rates(1.0)
        loss, step = torch.zeros(()), before
        for _ in range(20):  # the first few are skipped while fp16's scale finds its size
            loss = engine.step(batch, 0)
            step = torch.cat([p.detach().flatten() for p in engine.classifier.parameters()]) - before
            if step.abs().max() > 1e-4:
                break
        moved[kind] = (loss.item(), step)
        assert all(p.dtype == torch.float32 for p in engine.classifier.parameters())
    assert moved[autocast][0] == pytest.approx(moved["none"][0], rel=0.02)
    assert not torch.equal(moved[autocast][1], moved["none"][1])
    assert torch.cosine_similarity(moved[autocast][1], moved["none"][1], dim=0) > 0.99


def test_the_log_follows_the_schedule(settings, tmp_path):
    config = settings(schedule="cosine", warmup=0.25, lr=0.07, log_every=1)
    train(config, tmp_path / "run")
    steps = [r for r in read_log(tmp_path / "run" / "log.jsonl") if r["kind"] == "step"]
    assert [r["step"] for r in steps] == list(range(1, 19))
    for r in steps:
        expected = 0.07 * learning_rate("cosine", (r["step"] - 1) / 18, warmup=0.25)
        assert r["lr"] == pytest.approx(expected)
        parts = r["terms"]["NormFace"] + 0.5 * r["terms"]["SampleMargin"]
        assert r["loss"] == pytest.approx(parts, rel=1e-4)


def test_patience_ends_a_run_that_no_longer_improves(settings, tmp_path):
    result = train(settings(epochs=50, lr=1e-12, patience=3), tmp_path / "run")
    assert (result["epochs"], result["best"]["epoch"]) == (4, 1)


def test_a_time_budget_ends_the_run_with_a_small_learning_rate(settings, tmp_path):
    start = time.monotonic()
    result = train(settings(epochs=None, minutes=0.02, log_every=1), tmp_path / "run")
    assert 1.0 < time.monotonic() - start < 6.0
    last = [r for r in read_log(tmp_path / "run" / "log.jsonl") if r["kind"] == "step"][-1]
    assert last["lr"] < 0.1 * 0.05
    assert result["steps"] > 10


def test_the_best_weights_are_those_of_the_best_epoch(settings, tmp_path):
    result = train(settings(epochs=8, lr=1.5), tmp_path / "run")
    epochs = [r for r in read_log(tmp_path / "run" / "log.jsonl") if r["kind"] == "epoch"]
    best = max(epochs, key=lambda r: r["accuracy"])
    assert result["best"] == {"accuracy": best["accuracy"], "epoch": best["epoch"] + 1}
    whole = train(settings(epochs=8, lr=1.5), tmp_path / "again")
    assert whole["best"] == result["best"]
    assert same(weights_of(tmp_path / "run"), weights_of(tmp_path / "again"))
    again = read_tensors(tmp_path / "again" / "best.safetensors")
    assert same(RunFolder(tmp_path / "run").weights("best"), again)
    assert result["best"]["epoch"] == 8 or not same(again, weights_of(tmp_path / "run"))


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(settings, tmp_path):
    """Whether losses are read at each step or at every fiftieth, the same step is named."""
    found = []
    for name, log_every in (("often", 1), ("seldom", 50)):
        options = {"log_every": log_every, "checkpoint_seconds": 1e-9 if log_every == 1 else 300.0}
        config = settings(objective="CE", lr=1e4, schedule="constant", epochs=9, **options)
        words = r"became (nan|inf) at step \d+, with a learning rate of 1"
        with pytest.raises(NonFiniteLossError, match=words) as e:
            train(config, tmp_path / name)
        found.append(str(e.value).partition(", with")[0])
        checkpoint = RunFolder(tmp_path / name).checkpoint()
        assert str(checkpoint or "none") in str(e.value)
        assert (checkpoint is None) == (name == "seldom")
    assert all(t.isfinite().all() for t in weights_of(tmp_path / "often").values())
    assert found[0] == found[1]


def test_weights_that_the_last_step_spoils_are_no_result(settings, tmp_path):
    config = settings(objective="1000*CE", lr=3e38, schedule="constant", epochs=1, batch_size=10_000)
    with pytest.raises(NonFiniteLossError, match=r"no longer finite after step 1, .* checkpoint is none"):
        train(config, tmp_path / "run")
    assert RunFolder(tmp_path / "run").result is None


def test_the_first_look_at_the_data_is_at_all_classes(settings, monkeypatch):
    """Files come class by class."""
    data = load(settings().data)
    order = data.train.labels.argsort(stable=True)
    data = dataclasses.replace(data, train=data.train.select(order))
    seen = []
    monkeypatch.setattr(classifier, "CALIBRATION_SAMPLES", 20)
    backbone = build_classifier(resolve(settings()), DataFacts.of(data)).backbone
    monkeypatch.setattr(type(backbone), "calibrate", lambda _, images: seen.append(images))
    classifier.calibrate(backbone, data, resolve(settings()), torch.device("cpu"))
    known = {image.numpy().tobytes(): label for image, label in zip(*_normalized(data), strict=True)}
    assert len({known[image.numpy().tobytes()] for image in seen[0]}) > 2


def _normalized(data):
    every = next(iter(Batches(data, batch_size=len(data.train), training=False).epoch(0)))
    return every.images, every.labels.tolist()


def test_whitening_is_set_from_the_data_before_the_first_step(settings, tmp_path):
    train(settings(model="fastnet-half", epochs=1), tmp_path / "run")
    classifier = RunFolder(tmp_path / "run").classifier()
    data = load(settings().data)
    assert isinstance(data.train, InMemory)
    assert isinstance(classifier.backbone, FastNet)
    images = (data.train.images / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        response = classifier.backbone.whitening(images).transpose(0, 1).flatten(1)[:4]
    covariance = (response - response.mean(1, keepdim=True)) @ response.T / response.shape[1]
    torch.testing.assert_close(covariance, torch.eye(4), atol=0.1, rtol=0)


def test_a_batch_without_images_changes_nothing(settings):
    """On disk, every file of a batch may turn out to be unreadable."""
    engine, batch = engine_of(settings()), first_batch(settings())
    before = {name: value.clone() for name, value in engine.classifier.state_dict().items()}
    assert engine.step(type(batch)(*(part[:0] for part in batch)), 0) == 0
    assert same(before, engine.classifier.state_dict())


def test_parts_may_outnumber_the_images_of_a_batch(settings):
    batch = type(first_batch(settings()))(*(part[:3] for part in first_batch(settings())))
    whole, parts = (engine_of(settings(model="cnn4", accumulate=n)) for n in (3, 5))
    losses = [engine.step(batch, 0) for engine in (whole, parts)]
    torch.testing.assert_close(*losses)
    assert same(whole.classifier.state_dict(), parts.classifier.state_dict())


def test_tensorboard_gets_the_numbers_of_the_log(settings, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(settings(track="tensorboard"), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    logged = [r["accuracy"] for r in read_log(tmp_path / "run" / "log.jsonl") if r["kind"] == "epoch"]
    assert [e.value for e in events.Scalars("epoch/accuracy")] == pytest.approx(logged)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_determinism_holds_inside_and_ends_outside(before, wanted):
    seen = torch.are_deterministic_algorithms_enabled
    torch.use_deterministic_algorithms(before)
    try:
        with determinism(wanted):
            assert seen() == (wanted or before)
        assert seen() == before
    finally:
        torch.use_deterministic_algorithms(False)
