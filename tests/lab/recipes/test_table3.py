import pytest

from tammes.lab.recipes import table3
from tammes.lab.recipes.row_records import read_rows
from tammes.lab.recipes.row_training import run_rows
from tammes.lab.recipes.table import Row
from tammes.losses import parse


@pytest.mark.parametrize("dataset", table3.NAMES)
@pytest.mark.parametrize("preset", ["paper", "laptop"])
def test_every_row_of_table_8_is_there_with_its_printed_numbers(dataset, preset):
    table = table3.table(dataset=dataset, preset=preset)
    rows, printed = table.rows, table3.printed(dataset)
    assert len(rows) == len(printed) == 17
    assert [row.key.removeprefix(table.prefix) for row in rows] == list(printed)
    assert all(set(row.paper) == {"mAP", "rank1", "rank5", "rank10"} for row in rows)
    assert all(row.config.data == dataset and row.config.triplet == 1 for row in rows)
    for row in rows[1:]:
        (term,) = [term for _, term in parse(row.config.objective).weighted_terms]
        assert f"s={term.scale:g})" in row.label


def test_some_printed_numbers_are_the_papers():
    market, duke = table3.printed("market1501"), table3.printed("dukemtmc-reid")
    assert market["ce"] == {"mAP": 82.8, "rank1": 92.7, "rank5": 97.5, "rank10": 98.7}
    assert duke["lmsoftmax-s64"] == {"mAP": 74.2, "rank1": 86.6, "rank5": 93.5, "rank10": 95.2}
    assert market["normface-s32"] == market["normface-s64"]  # docs/errata.md, 13


def test_a_row_trains_and_is_drawn(people, tmp_path):
    from dataclasses import replace

    from tammes.lab.report.scale_figure import draw_scales

    small = {"data": str(people), "image_size": 24, "model": "cnn4", "epochs": 1, "batch_size": 12}
    every = table3.table().rows
    rows = [
        Row(
            row.key,
            row.label,
            replace(row.config, **small, images_per_person=3, device="cpu"),
            row.paper,
            row.block,
        )
        for row in every
        if row.key.endswith(("-ce", "-lmsoftmax-s10"))
    ]
    run_rows(rows, tmp_path / "out", runs=tmp_path / "runs")
    records = read_rows(rows, tmp_path / "out")
    assert all(0 < record["metrics"]["mAP"] <= 1 for record in records.values())
    assert len(records) == 2
    draw_scales(rows, records, tmp_path / "scales.png")
    assert (tmp_path / "scales.png").stat().st_size > 10_000
