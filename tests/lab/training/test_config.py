import json

import pytest

from tammes.lab.training import Config, read_config, resolve
from tammes.lab.training.config import FORMAT, read_resolved
from tammes.losses import parse


def test_what_is_left_open_is_resolved(tmp_path):
    asked = Config(data="digits", optimizer="sgd", objective="CosFace(scale=8,margin=0.2)")
    assert (asked.lr, asked.weight_decay, asked.prototype_lr, asked.epochs) == (None, None, None, None)
    config = resolve(asked)
    assert (config.lr, config.weight_decay, config.prototype_lr, config.epochs) == (0.1, 1e-4, 0.1, 20)
    assert asked.objective == config.objective == "CosFace(s=8, m=0.2)"
    assert asked.changed() == {"data": "digits", "optimizer": "sgd", "objective": "CosFace(s=8, m=0.2)"}


def test_a_setting_that_was_asked_for_stays_and_the_others_follow_it():
    config = resolve(Config(data="digits", lr=0.3, weight_decay=0.0, unit_prototypes=False))
    assert (config.lr, config.weight_decay, config.unit_prototypes) == (0.3, 0.0, False)
    assert config.prototype_lr == 0.3


@pytest.mark.parametrize(
    ("asked", "every"),
    [
        ({}, 3),  # of 20 epochs
        ({"epochs": 10}, 1),
        ({"epochs": 2}, 1),
        ({"epochs": 200}, 29),
        ({"evaluate_every": 5}, 5),
        ({"minutes": 3.0}, 1),
        ({"epochs": 200, "patience": 4}, 1),
    ],
)
def test_a_run_is_evaluated_about_seven_times(asked, every):
    assert resolve(Config(data="digits", **asked)).evaluate_every == every


def test_the_file_has_both_what_was_asked_and_what_runs(tmp_path):
    config = resolve(Config(data="digits", optimizer="sgd", lr=0.3))
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    assert read_config(path) == config.asked
    assert read_resolved(path) == config
    stored = json.loads(path.read_text())
    assert (stored["lr"], stored["weight_decay"]) == (0.3, None)
    expected = {"prototype_lr": 0.3, "weight_decay": 1e-4, "unit_prototypes": True, "epochs": 20}
    expected |= {"model": "fastnet-half", "pretrained": None, "batch_size": 128}
    expected |= {"augment_style": "fast", "frozen_start": 0.0, "neck": False, "evaluate_every": 3}
    assert stored["resolved"] == expected


def test_a_stored_run_keeps_its_values_when_defaults_change(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text(resolve(Config(data="digits")).to_json())
    monkeypatch.setattr("tammes.lab.training.config.USUAL_EPOCHS", 7)
    assert read_resolved(path).epochs == 20
    assert resolve(read_config(path)).epochs == 7


@pytest.mark.parametrize(("native", "chosen"), [(True, "bf16"), (False, "none")])
def test_auto_precision_is_the_processors_and_a_stored_run_keeps_its_own(
    tmp_path, monkeypatch, native, chosen
):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": native}, raising=False)
    config = resolve(Config(data="digits", autocast="auto", device="cpu"))
    assert config.autocast == chosen
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": not native}, raising=False)
    assert read_resolved(path).autocast == chosen
    assert read_config(path).autocast == "auto"


def test_all_values_of_format_1_count_as_asked(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"format": 1, "tammes": "0.1.0", "data": "digits", "lr": 0.002, "epochs": 20}')
    assert read_config(path) == Config(data="digits", lr=0.002, epochs=20, frozen_start=0.0)
    assert read_resolved(path).settings() == resolve(Config(data="digits")).settings()


def test_the_objective_is_parsed_once(monkeypatch):
    texts = []

    def count(text):
        texts.append(text)
        return parse(text)

    monkeypatch.setattr("tammes.losses._text.parse", count)
    config = resolve(Config(data="digits", objective="NormFace(s=9)"))
    assert config.parsed is config.asked.parsed
    assert texts == ["NormFace(s=9)"]


def test_a_time_budget_needs_no_epochs():
    assert resolve(Config(data="digits", minutes=2.5)).epochs is None
    assert resolve(Config(data="digits", minutes=2.5, epochs=3)).epochs == 3


@pytest.mark.parametrize(
    ("objective", "unit"),
    [("NormFace(s=9)", True), ("LMSoftmax(s=9) + 100*R_w", True), ("CE", False), ("CE + 0.5*R_sm", False)],
)
def test_prototypes_are_kept_at_norm_1_where_the_objective_does_not_see_their_norms(objective, unit):
    assert resolve(Config(data="digits", objective=objective)).unit_prototypes is unit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": 'LMSoftmax(s=9, reduction="lse")', "accumulate": 2}, "cannot be accumulated"),
        ({"objective": 'LMSoftmax(s=9, reduction="none")'}, "cannot be minimized"),
        ({"objective": "CosFase(s=9, m=0.1)"}, "Did you mean CosFace"),
        ({"objective": "NormFace(s=9)", "margin_warmup": 2.0}, "needs a loss with a margin"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"lr": -0.1}, "lr must be positive"),
        ({"lr": float("nan")}, "lr must be finite"),
        ({"schedule": "one-cycle", "warmup": 0.1}, "its own warm-up"),
        ({"milestones": (30.0,)}, "fraction of the run"),
        ({"accumulate": 9, "batch_size": 8}, "accumulate=9, batch_size=8"),
        ({"nesterov": True, "optimizer": "adamw"}, "nesterov needs"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(data="digits", **changes)


def test_a_word_that_is_not_among_the_choices_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"data": "digits", "schedule": "linear"}')
    with pytest.raises(
        (ValueError, TypeError), match=r"schedule|Type-check"
    ):  # the type checker may be first
        read_config(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"format": FORMAT + 1, "tammes": "9.9.9", "data": "digits"}), "written by tammes 9.9.9"),
        ('{"data": "digits", "epoch": 3}', "unknown setting 'epoch'. Did you mean epochs"),
        ('{"data": "digits", "epochs": "3"}', "epochs cannot be '3'"),
        ('{"data": "digits", "epochs": true}', "epochs cannot be True"),
        ('{"data": "digits", "compile": 1}', "compile cannot be 1"),
        ('{"epochs": 3}', "has no setting 'data'"),
        ("[1, 2]", "must contain one JSON object"),
        ("{", "is not valid JSON"),
        ('{"data": "digits", "resolved": 3}', "resolved must be a JSON object"),
        ('{"data": "digits", "resolved": {"rate": 3}}', "unknown setting 'rate'"),
        ('{"data": "digits", "resolved": {"lr": null}}', "lr cannot be None"),
        ('{"data": "digits", "resolved": {"lr": -1.0}}', "lr must be positive"),
    ],
)
def test_a_config_file_that_cannot_be_understood_is_refused(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_resolved(path)


def test_a_short_config_written_by_hand_has_defaults_for_the_rest(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"data": "digits", "lr": 1, "milestones": [0.3]}')
    assert read_config(path) == Config(data="digits", lr=1.0, milestones=(0.3,))
