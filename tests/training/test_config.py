import dataclasses
import json

import pytest

from tammes.training import Config, read_config
from tammes.training.config import FORMAT, unsettled


def test_what_is_left_open_is_settled_and_stored(tmp_path):
    config = Config(data="digits", optimizer="sgd", objective="CosFace(scale=8,margin=0.2)")
    assert (config.lr, config.weight_decay, config.prototype_lr, config.epochs) == (0.1, 1e-4, 0.1, 20)
    assert config.objective == "CosFace(s=8, m=0.2)"
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    assert read_config(path) == config
    assert None not in (json.loads(path.read_text())[name] for name in ("lr", "epochs", "unit_prototypes"))


def test_a_time_budget_needs_no_epochs():
    assert Config(data="digits", minutes=2.5).epochs is None
    assert Config(data="digits", minutes=2.5, epochs=3).epochs == 3


@pytest.mark.parametrize(
    ("objective", "unit"),
    [("NormFace(s=9)", True), ("LMSoftmax(s=9) + 100*R_w", True), ("CE", False), ("CE + 0.5*R_sm", False)],
)
def test_prototypes_are_kept_at_norm_1_where_the_objective_does_not_see_their_norms(objective, unit):
    assert Config(data="digits", objective=objective).unit_prototypes is unit


def test_settled_fields_are_told_from_chosen_ones():
    config = Config(data="digits", lr=0.3, objective="CE")
    assert unsettled(config) == ["prototype_lr", "weight_decay", "unit_prototypes", "epochs"]
    assert dataclasses.replace(config, objective="NormFace(s=9)", unit_prototypes=None).unit_prototypes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": 'LMSoftmax(s=9, reduction="lse")', "accumulate": 2}, "does not add up"),
        ({"objective": 'LMSoftmax(s=9, reduction="none")'}, "no number to minimise"),
        ({"objective": "CosFase(s=9, m=0.1)"}, "Did you mean CosFace"),
        ({"objective": "NormFace(s=9)", "margin_warmup": 2.0}, "needs a loss with a margin"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"lr": -0.1}, "lr must be positive"),
        ({"lr": float("nan")}, "lr must be finite"),
        ({"schedule": "one-cycle", "warmup": 0.1}, "its own rise"),
        ({"milestones": (30.0,)}, "share of the run"),
        ({"accumulate": 9, "batch_size": 8}, "each part a sample"),
        ({"nesterov": True, "optimizer": "adamw"}, "nesterov needs"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(data="digits", **changes)


def test_a_word_that_is_not_among_the_choices_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"data": "digits", "schedule": "linear"}')
    with pytest.raises((ValueError, TypeError), match="schedule"):  # the type checker may be first
        read_config(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"format": FORMAT + 1, "tammes": "9.9.9", "data": "digits"}), "written by tammes 9.9.9"),
        ('{"data": "digits", "epoch": 3}', "unknown setting 'epoch'. Did you mean epochs"),
        ('{"data": "digits", "epochs": "3"}', "epochs cannot be '3'"),
        ('{"data": "digits", "epochs": true}', "epochs cannot be True"),
        ('{"data": "digits", "compile": 1}', "compile cannot be 1"),
        ('{"epochs": 3}', "does not name the data"),
        ("[1, 2]", "must hold one JSON object"),
        ("{", "is not JSON"),
    ],
)
def test_a_config_file_that_cannot_be_understood_is_refused(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config(path)


def test_a_short_config_written_by_hand_has_defaults_for_the_rest(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"data": "digits", "lr": 1, "milestones": [0.3]}')
    assert read_config(path) == Config(data="digits", lr=1.0, milestones=(0.3,))
