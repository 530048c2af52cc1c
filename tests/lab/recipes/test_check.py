import dataclasses
import json
import math

import pytest

from tammes.lab.recipes.check import Agreement, allowed, check
from tammes.lab.recipes.row_training import run_rows
from tammes.lab.recipes.table import Table
from tammes.lab.report.tables import Column


def test_a_row_trained_again_agrees_with_its_record_and_leaves_nothing_behind(row, tmp_path):
    one, two = row("one"), row("two")
    run_rows([one], tmp_path / "out", runs=tmp_path / "runs")
    table = Table(
        name="t",
        title="T",
        columns=[Column("acc", "accuracy"), Column("m_cls", "class_margin_deg"), Column("mAP", "mAP")],
        rows=[one, two],
        out=str(tmp_path / "out"),
        runs=str(tmp_path / "again"),
    )
    found = check(table, "one")
    assert [(each.metric, each.agrees) for each in found] == [("accuracy", True), ("class_margin_deg", True)]
    assert not list((tmp_path / "again").rglob("*.json"))
    path = tmp_path / "out" / "one.json"
    stored = json.loads(path.read_text())
    stored["metrics"]["class_margin_deg"] += 1.0
    path.write_text(json.dumps(stored))
    _, changed = check(table, "one")
    assert changed.agrees is None  # no second seed, so no noise to judge by
    with pytest.raises(ValueError, match="There is no finished record of two"):
        check(table, "two")


def test_noise_is_that_of_the_rows_own_seeds_or_pooled_over_the_tables(row):
    a, b, c = row("a"), row("b"), row("c")

    def records(**values):
        return {key.replace("_", "-"): {"metrics": {"x": value}} for key, value in values.items()}

    some = records(a=1.0, a_seed1=3.0, b=1.0, b_seed1=1.0, b_seed2=4.0, c=7.0)
    two = 1.96 * math.sqrt(2)
    assert allowed(a, [a, b, c], some, "x") == pytest.approx(two * math.sqrt(2))
    # pooled: (1 * 2 + 2 * 3) / 3
    assert allowed(c, [a, b, c], some, "x") == pytest.approx(two * math.sqrt(8 / 3))
    assert allowed(c, [c], some, "x") is None


def test_noise_is_not_taken_from_a_row_of_the_same_label_in_another_block(row):
    here, there = (dataclasses.replace(row(key), label="NormFace", block=key) for key in "ab")
    records = {"a": {"metrics": {"x": 1.0}}, "b": {"metrics": {"x": 1.0}}, "a-seed1": {"metrics": {"x": 3.0}}}
    records |= {"b-seed1": {"metrics": {"x": 101.0}}}
    assert allowed(here, [here, there], records, "x") == pytest.approx(1.96 * math.sqrt(2) * math.sqrt(2))


def test_what_agrees():
    assert Agreement("x", 1.0, 1.1, 0.2).agrees
    assert Agreement("x", 1.0, 1.3, 0.2).agrees is False
    assert Agreement("x", 1.0, 1.3, None).agrees is None
    assert Agreement("x", 1.0, 1.0, None).agrees
