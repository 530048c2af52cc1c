"""Training for faces: sampled classes, other identities, two processes."""

import numpy as np
import pytest
import torch

from tammes.heads import RowAdamW, RowSGD
from tammes.lab.training import RunFolder, RunInterruptedError, resolve, train
from tammes.lab.training.classifier import DataFacts, build_classifier, build_optimizer
from tammes.lab.training.warm_start import _by_name


def test_a_sampled_run_resumes_to_the_same_end(settings, interrupt_at, tmp_path):
    config = settings(sample_rate=0.5, objective="CosFace(s=8, m=0.1) + 10*R_w", lr=0.05)
    train(config, tmp_path / "whole")
    with pytest.raises(RunInterruptedError):
        train(config, tmp_path / "parts", sinks=[interrupt_at(8)])
    train(config, tmp_path / "parts", resume=True)
    whole, parts = RunFolder(tmp_path / "whole").weights(), RunFolder(tmp_path / "parts").weights()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert whole["head.sampler._extra_state"][1] == 3 * (97 // 16)  # one draw a step


def test_a_rate_of_one_is_the_run_without_sampling(settings, tmp_path):
    """Every class is in every sample, so rows and their optimizers do what torch's do."""
    for name, rate in (("plain", None), ("sampled", 1.0)):
        config = settings(sample_rate=rate, optimizer="adamw", epochs=1, prototype_init="packed")
        train(config, tmp_path / name)
    plain, sampled = (RunFolder(tmp_path / name).weights() for name in ("plain", "sampled"))
    for name in plain:
        torch.testing.assert_close(sampled[name], plain[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("optimizer", "kind"), [("sgd", RowSGD), ("adamw", RowAdamW)])
def test_sampled_rows_have_their_own_optimizer(settings, optimizer, kind):
    config = resolve(settings(sample_rate=0.5, optimizer=optimizer))
    classifier = build_classifier(config, facts(("a", "b", "c")))
    assert type(build_optimizer(config, classifier.backbone, classifier.head)) is kind


def facts(classes: tuple[str, ...]) -> DataFacts:
    shape = (1, 10, 11)
    return DataFacts(
        name="made", classes=classes, shape=shape, mean=(0.5,), std=(0.2,), class_counts=(1,) * len(classes)
    )


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_a_rate_is_a_share(settings, rate):
    with pytest.raises(ValueError, match="sample_rate must"):
        settings(sample_rate=rate)


def test_known_classes_keep_their_prototypes_and_new_ones_start_far_from_them():
    torch.manual_seed(0)
    old = torch.randn(3, 16)
    rows = _by_name(("c", "new", "a", "other"), ("a", "b", "c"), old, seed=3)
    assert torch.equal(rows[[0, 2]], old[[2, 0]])
    unit = torch.nn.functional.normalize(rows)
    nearest = (torch.nn.functional.normalize(torch.randn(200, 16)) @ unit[[0, 2]].T).amax(1)
    assert (unit[[1, 3]] @ unit[[0, 2]].T).max() < nearest.quantile(0.2)
    assert unit[1] @ unit[3] < nearest.quantile(0.2)
    assert rows[1].norm() == pytest.approx(old.norm(dim=1).mean().item())


def test_a_run_started_from_another_sees_images_as_that_one_did(settings, stripes, tmp_path):
    train(settings(epochs=2, lr=0.1), tmp_path / "first")
    other = tmp_path / "other.npz"
    stored = dict(np.load(stripes))
    kept = {split: stored[f"y_{split}"] >= 2 for split in ("train", "test")}
    for split in kept:
        stored[f"x_{split}"] = stored[f"x_{split}"][kept[split]] // 2  # other people, in dimmer light
        stored[f"y_{split}"] = stored[f"y_{split}"][kept[split]] + 1
    np.savez(other, **stored)
    config = settings(data=str(other), start=str(tmp_path / "first"), lr=1e-9, epochs=1)
    train(config, tmp_path / "second")
    first, second = RunFolder(tmp_path / "first"), RunFolder(tmp_path / "second")
    assert second.facts.classes == ("3", "4", "5")
    assert (second.facts.mean, second.facts.std) == (first.facts.mean, first.facts.std)
    new = second.weights()
    torch.testing.assert_close(new["head.weight"][:2], first.weights()["head.weight"][3:], rtol=0, atol=1e-6)
    torch.testing.assert_close(
        new["backbone.net.1.weight"], first.weights()["backbone.net.1.weight"], rtol=0, atol=1e-6
    )
