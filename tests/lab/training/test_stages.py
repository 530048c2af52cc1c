"""Later stages: what is taken over, what stays frozen to the bit, what learns, and resuming."""

import dataclasses

import pytest
import torch

from tammes.lab.training import Config, RunFolder, RunInterruptedError, train
from tammes.lab.training.engine import Engine
from tammes.lab.training.stages import CRT, LWS, MISLAS, TAU, Stage, after, train_stages

SHORT = {"imbalance": "long_tailed:4", "objective": "CE", "model": "cnn4", "epochs": 2}


@pytest.fixture
def first(settings, tmp_path) -> Config:
    """A first stage, trained into tmp_path / "first"."""
    config = settings(**SHORT)
    train(config, tmp_path / "first")
    return config


def stage(first: Config, which: Stage, tmp_path, **changes):
    """Weights of the first stage and of one after it."""
    config = after(first, which, tmp_path / "first", **({"epochs": 2} | changes))
    train(config, tmp_path / which.name)
    return RunFolder(tmp_path / "first").weights(), RunFolder(tmp_path / which.name).weights()


def assert_same_backbone(before, now, *, but: tuple[str, ...] = ()):
    names = [name for name in before if name.startswith("backbone.") and not name.endswith(but or ("?",))]
    assert len(names) > 3
    for name in names:
        assert torch.equal(before[name], now[name]), name


@pytest.mark.parametrize("which", [CRT, LWS, TAU], ids=lambda s: s.name)
def test_features_are_bit_unchanged_in_the_second_stage(first, tmp_path, which):
    before, now = stage(first, which, tmp_path)
    assert_same_backbone(before, now)
    assert not torch.equal(before["head.weight"], now["head.weight"])


def test_mislas_shifts_batch_statistics_and_nothing_else_of_the_network(first, tmp_path):
    before, now = stage(first, MISLAS, tmp_path)
    shifted = ("running_mean", "running_var", "num_batches_tracked")
    assert_same_backbone(before, now, but=shifted)
    moved = [name for name in before if name.endswith("running_mean")]
    assert moved
    assert all(not torch.equal(before[name], now[name]) for name in moved)


def test_crt_starts_with_new_prototypes_and_the_others_with_those_of_the_first(first, tmp_path):
    """A tiny learning rate leaves them at their initial values."""
    before, now = stage(first, CRT, tmp_path, lr=1e-12)
    assert not torch.allclose(before["head.weight"], now["head.weight"], atol=1e-3)
    before, now = stage(first, MISLAS, tmp_path, lr=1e-12)
    torch.testing.assert_close(before["head.weight"], now["head.weight"])


def test_lws_changes_lengths_and_not_directions(first, tmp_path):
    before, now = stage(first, LWS, tmp_path, lr=0.5)
    before, now = before["head.weight"], now["head.weight"]
    cosines = torch.nn.functional.cosine_similarity(before.double(), now.double())
    torch.testing.assert_close(cosines, torch.ones_like(cosines), atol=1e-6, rtol=0)
    assert ((before.norm(dim=1) - now.norm(dim=1)).abs() > 1e-3).any()


@pytest.mark.parametrize("tau", [0.4, 1.0])
def test_tau_normalization_divides_by_the_length_to_the_power_tau(first, tmp_path, tau):
    before, now = stage(first, TAU, tmp_path, tau=tau)
    before, now = before["head.weight"], now["head.weight"]
    for old, new in zip(before, now, strict=True):
        torch.testing.assert_close(new, old / old.norm() ** tau)
    result = RunFolder(tmp_path / "tau").result
    assert result is not None
    assert (result["epochs"], result["steps"]) == (0, 0)
    assert torch.equal(RunFolder(tmp_path / "tau").weights("best")["head.weight"], now)


def test_retraining_draws_classes_equally_often(first, tmp_path, monkeypatch):
    seen, step = [], Engine.step

    def note(self, batch, number):
        seen.append(batch.labels.bincount(minlength=5))
        return step(self, batch, number)

    monkeypatch.setattr(Engine, "step", note)
    counts = torch.tensor(RunFolder(tmp_path / "first").facts.class_counts)
    stage(first, CRT, tmp_path)
    drawn = torch.stack(seen).sum(0)
    assert counts.max() > 3 * counts.min()
    assert drawn.max() - drawn.min() <= 2 * len(counts)


def test_r_w_in_the_second_stage_pulls_the_centroid_to_zero(first, tmp_path):
    """Stages are settings: the objective is one of them."""

    def centroid(name, objective):
        config = after(first, MISLAS, tmp_path / "first", objective=objective, epochs=20, lr=0.05)
        train(config, tmp_path / name)
        return RunFolder(tmp_path / name).weights()["head.weight"].mean(0).norm()

    plain, pulled = centroid("plain", "LAS"), centroid("both", "LAS + 100*R_w(normalize=False)")
    assert pulled < plain / 3


def test_what_the_first_stage_did_about_its_classes_ends_with_it(settings):
    first = settings(**SHORT, mixup=0.5, class_weights="effective", reweight_from=0.5, logit_adjustment=1.0)
    later = after(first, CRT, "first")
    assert (later.mixup, later.class_weights, later.reweight_from, later.logit_adjustment) == (
        0,
        "none",
        0,
        0,
    )
    grown = dataclasses.replace(first, objective="CosFace(s=5, m=0.1)", margin_warmup=1.0)
    assert after(grown, MISLAS, "first").margin_warmup == 0


def test_a_stage_that_makes_no_sense_is_refused_before_the_first_is_trained(settings, tmp_path):
    with pytest.raises(ValueError, match=r"NormFace.* ignores prototype norms"):
        train_stages(settings(**SHORT | {"objective": "NormFace(s=5)"}), [TAU], tmp_path / "all")
    assert not (tmp_path / "all").exists()


STAGES = (CRT, Stage("again", {**MISLAS.settings, "epochs": 3}))


def test_stages_resume_between_and_within_to_the_same_end(settings, tmp_path):
    config = settings(**SHORT, log_every=1)
    stages = [dataclasses.replace(s, settings={**s.settings, "epochs": 3}) for s in STAGES]
    whole = train_stages(config, stages, tmp_path / "whole")

    class InterruptEveryThird:
        seen = 0

        def __call__(self, record):
            import signal

            if record["kind"] == "step":
                self.seen += 1
                if self.seen % 3 == 0:
                    signal.raise_signal(signal.SIGINT)

    interrupt, times = InterruptEveryThird(), 0
    while True:
        try:
            train_stages(config, stages, tmp_path / "broken", sinks=[interrupt])
            break
        except RunInterruptedError:
            times += 1
    assert times > 4
    for name in ("first", "crt", "again"):
        a, b = (RunFolder(tmp_path / way / name).weights() for way in ("whole", "broken"))
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert len(whole) == 3


def test_another_backbone_is_refused_with_both_names(first, tmp_path):
    config = dataclasses.replace(after(first, CRT, tmp_path / "first"), model="resnet18")
    with pytest.raises(ValueError, match="has the backbone cnn4, this run resnet18"):
        train(config, tmp_path / "other")
    config = dataclasses.replace(after(first, CRT, tmp_path / "first"), embedding=9)
    with pytest.raises(ValueError, match="has the backbone cnn4, this run cnn4 with embedding=9"):
        train(config, tmp_path / "embedded")
    config = dataclasses.replace(after(first, CRT, tmp_path / "first"), neck=True)
    with pytest.raises(ValueError, match="has the backbone cnn4, this run cnn4 with neck=True"):
        train(config, tmp_path / "neck")


def test_embeddings_of_another_size_are_refused(first, tmp_path):
    config = dataclasses.replace(after(first, MISLAS, tmp_path / "first"), image_size=20)
    with pytest.raises(ValueError, match=r"has head\.weight of shape .* Use images of the size"):
        train(config, tmp_path / "larger")
    assert not (tmp_path / "larger").exists()


def test_an_unfinished_or_missing_start_is_refused(first, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is not a run folder"):
        train(after(first, CRT, tmp_path / "nowhere"), tmp_path / "a")
    (tmp_path / "first" / "result.json").unlink()
    with pytest.raises(ValueError, match=r"has no result yet\. Finish it: tammes train --resume"):
        train(after(first, CRT, tmp_path / "first"), tmp_path / "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learns": "prototypes"}, "learns='prototypes' needs start"),
        ({"tau": 0.5}, "tau=0.5 needs start"),
        ({"start": "x", "shift_batch_norm": True}, "is for frozen backbones"),
        ({"start": "x", "shift_batch_norm": True, "learns": "nothing"}, "a run that processes images"),
        (
            {"start": "x", "fresh_prototypes": True, "tau": 0.5, "objective": "CE"},
            "no trained norms to divide by",
        ),
        ({"start": "x", "learns": "lengths", "objective": "CE"}, "needs optimizer='sgd', got 'adamw'"),
        ({"start": "x", "tau": 0.5, "objective": "NormFace(s=5)"}, "NormFace.* ignores prototype norms"),
        ({"start": "x", "learns": "prototypes", "trainable_prototypes": False}, "or nothing is trained"),
    ],
)
def test_stages_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(data="digits", **changes)
