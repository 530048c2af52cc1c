import dataclasses
import json
from pathlib import Path

import pytest

from tammes.lab.recipes import cifar10
from tammes.lab.training import resolve

TRAINED = Path(__file__).parents[3] / "results" / "train"


@pytest.mark.parametrize(
    ("key", "record"), [("half-packed+rsm", "cifar10-fastnet-half"), ("full-packed+rsm", "cifar10-fastnet")]
)
def test_a_row_has_the_settings_of_the_first_run_but_for_its_minutes(key, record):
    stored = json.loads((TRAINED / f"{record}.json").read_text())
    (row,) = (row for row in cifar10.table().rows if row.key == key)
    ours = json.loads(json.dumps(resolve(row.config).settings()))
    other = {name: value for name, value in stored["config"].items() if ours[name] != value}
    assert other.keys() == {"minutes", "epochs"}
    assert row.config.epochs == stored["epochs"]


def test_rows_change_one_choice_at_a_time():
    rows = {row.key: row.config for row in cifar10.table().rows}
    for name in ("half", "full"):
        first = rows[f"{name}-packed+rsm"]
        random, plain = rows[f"{name}-random+rsm"], rows[f"{name}-packed"]
        assert dataclasses.replace(first, prototype_init="random") == random
        assert dataclasses.replace(first, objective=plain.objective) == plain
        assert "R_sm" not in plain.objective


@pytest.mark.parametrize(
    ("key", "epochs"),
    [
        ("short", {"epochs": (33, 20), "evaluate_every": (8, 5)}),
        (
            "hour",
            {"epochs": (33, 24), "evaluate_every": (8, 6), "neck": (False, True)}
            | {"norm_bias_factor": (1.0, 64.0)},
        ),
    ],
)
def test_the_accurate_rows_are_the_packed_one_with_more_weight_decay(key, epochs):
    rows = {row.key: row.config for row in cifar10.table().rows}
    full, accurate = (json.loads(json.dumps(resolve(rows[row]).settings())) for row in ("full-packed", key))
    changed = {name: (value, accurate[name]) for name, value in full.items() if accurate[name] != value}
    assert changed == epochs | {"weight_decay": (5e-4, 1e-3)}
