"""Which settings a table of runs has columns for."""

from tammes.lab.report.settings import differing_settings
from tammes.lab.training import Config, resolve


def record(**asked):
    config = resolve(Config(data="digits", **asked))
    return {"asked": config.asked.changed(), "config": config.settings()}


def test_settings_that_only_follow_from_others_have_no_column():
    runs = [record(objective="CE", lr=0.1), record(objective="NormFace(s=9)", lr=0.2)]
    assert differing_settings(runs) == ["objective", "lr"]
    assert runs[0]["config"]["unit_prototypes"] != runs[1]["config"]["unit_prototypes"]


def test_a_derived_setting_has_a_column_when_it_was_asked_for():
    runs = [record(prototype_lr=0.1), record()]
    assert differing_settings(runs) == ["prototype_lr"]


def test_asking_for_the_default_is_no_difference():
    assert differing_settings([record(lr=0.002), record()]) == ["objective"]


def test_records_that_do_not_say_what_was_asked_are_compared_in_everything():
    old = [{"config": record(objective=text)["config"]} for text in ("CE", "NormFace(s=9)")]
    assert differing_settings(old) == ["objective", "unit_prototypes"]
    assert differing_settings([old[0], record(objective="NormFace(s=9)")]) == ["objective", "unit_prototypes"]


def test_a_setting_that_one_version_does_not_have_is_no_difference():
    new = record()
    old = {"config": {name: value for name, value in new["config"].items() if name != "track"}}
    old["config"]["tensorboard"] = False
    assert differing_settings([old, new]) == ["objective"]
    assert differing_settings([old, record(seed=1)]) == ["seed"]
