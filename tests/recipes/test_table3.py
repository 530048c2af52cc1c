import pytest

from tammes.losses import parse
from tammes.recipes import table3
from tammes.recipes.table import Row, run_rows


@pytest.mark.parametrize("dataset", table3.NAMES)
@pytest.mark.parametrize("scale", ["paper", "laptop"])
def test_every_row_of_table_8_is_there_with_its_printed_numbers(dataset, scale):
    rows = table3.rows(dataset, scale)
    printed = table3.paper(dataset)
    assert len(rows) == len(printed) == 17
    assert [row.key.removeprefix(table3.prefix(dataset, scale)) for row in rows] == list(printed)
    assert all(set(row.paper) == {"mAP", "rank1", "rank5", "rank10"} for row in rows)
    assert all(row.config.data == dataset and row.config.triplet == 1 for row in rows)
    for row in rows[1:]:
        (term,) = [term for _, term in parse(row.config.objective).terms]
        assert f"s={term.scale:g})" in row.label


def test_some_printed_numbers_are_the_papers():
    market, duke = table3.paper("market1501"), table3.paper("dukemtmc-reid")
    assert market["ce"] == {"mAP": 82.8, "rank1": 92.7, "rank5": 97.5, "rank10": 98.7}
    assert duke["lmsoftmax-s64"] == {"mAP": 74.2, "rank1": 86.6, "rank5": 93.5, "rank10": 95.2}
    assert market["normface-s32"] == market["normface-s64"]  # docs/errata.md, 13


def test_a_row_trains_and_is_drawn(people, tmp_path):
    from dataclasses import replace

    from tammes.recipes.table import read_rows
    from tammes.report.scales import draw_scales

    small = {"data": str(people), "image_size": 24, "model": "cnn4", "epochs": 1, "batch_size": 12}
    every = table3.rows("market1501", "laptop")
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
