from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest
from rich.console import Console

from tammes.lab.report.page import html_table
from tammes.lab.report.tables import Cell, Column, Grid, beside, fill, to_markdown, to_terminal


class Row(NamedTuple):
    key: str
    label: str
    paper: Mapping[str, float] = MappingProxyType({})
    block: str = ""
    versus: str = ""


COLUMNS = (Column("acc %", "accuracy", 2, 100.0), Column("m_cls", "class_margin_deg", 1))
ROWS = [
    Row("plain", "CE", {"accuracy": 99.12, "class_margin_deg": 87.4}),
    Row("more", "CE + 0.5*R_sm", {"accuracy": 99.10, "class_margin_deg": 95.4}, "", "plain"),
    Row("more-seed1", "CE + 0.5*R_sm", {"accuracy": 99.10, "class_margin_deg": 95.4}, "", "plain"),
    Row("wild", "ArcFace", {}, "others"),
    Row("blank", "LM", {}, "others"),
]
RECORDS = {
    "plain": {"metrics": {"accuracy": 0.985, "class_margin_deg": 80.04}},
    "more": {"metrics": {"accuracy": 0.986, "class_margin_deg": 80.0}},
    "more-seed1": {"seed": 1, "metrics": {"accuracy": 0.988, "class_margin_deg": 80.02}},
    "wild": {"diverged": "The loss became nan"},
}


def grid() -> Grid:
    return beside("MNIST", ROWS, RECORDS, COLUMNS)


def lines() -> dict[str, list[Cell]]:
    return {cells[0].text: list(cells[1:]) for _, body in grid().blocks for cells in body}


def test_ours_stands_beside_the_paper():
    assert list(grid().columns) == ["", "acc %", "paper", "m_cls", "paper"]
    assert lines()["CE"] == [Cell("98.50"), Cell("99.12"), Cell("80.0"), Cell("87.4")]


def test_seeds_are_a_mean_a_standard_deviation_and_their_number():
    # 98.6 and 98.8: mean 98.7, standard deviation 0.2 / sqrt(2)
    assert lines()["CE + 0.5*R_sm"][0].text == "98.70 ± 0.14 (2)"


def test_pairs_are_compared_seed_by_seed():
    # The mean of the longer row is larger, but of the one seed that both have its number is the smaller.
    seeds = RECORDS | {"more": {"seed": 0, "metrics": {"accuracy": 0.984}}}
    shown = beside("MNIST", ROWS, seeds, COLUMNS[:1])
    cells = {cells[0].text: cells for _, body in shown.blocks for cells in body}
    assert cells["CE + 0.5*R_sm"][1] == Cell("98.60 ± 0.28 (2)", better=False)


def test_the_better_of_a_pair_is_marked_among_ours_and_among_the_papers():
    assert [cell.better for cell in lines()["CE + 0.5*R_sm"]] == [True, False, False, True]
    assert not any(cell.better for cell in lines()["CE"])


def test_the_notes_count_the_pairs_and_measure_the_distance():
    marks, apart = grid().notes
    assert marks == (
        "Marked: better than the row it extends: acc % in 1 of 1 pairs run, the paper's in 0 of 1; "
        "m_cls in 0 of 1 pairs run, the paper's in 1 of 1."
    )
    # accuracy: 98.5 - 99.12 and 98.7 - 99.10; class margin: 80.04 - 87.4 and 80.01 - 95.4
    assert apart == "Median of ours minus the paper's: acc % -0.51 (2 rows), m_cls -11.4 (2 rows)."


def test_what_was_not_run_is_blank_and_what_diverged_has_a_dash():
    assert [cell.text for cell in lines()["LM"]] == ["", "", "", ""]
    assert [cell.text for cell in lines()["ArcFace"]] == ["–", "", "–", ""]


def test_of_two_errors_the_smaller_is_marked():
    records = {"plain": {"metrics": {"ece": 0.2}}, "more": {"metrics": {"ece": 0.1}}}
    (_, body), *_ = beside("", ROWS[:2], records, [Column("ECE", "ece", falls=True)]).blocks
    assert [cells[1].better for cells in body] == [False, True]
    (_, body), *_ = beside("", ROWS[:2], records, [Column("ECE", "ece")]).blocks
    assert [cells[1].better for cells in body] == [False, False]


def test_a_seed_that_diverged_is_said():
    records = {**RECORDS, "more-seed1": {"diverged": "The loss became nan"}}
    (_, body), *_ = beside("", ROWS, records, COLUMNS).blocks
    assert body[1][1].text == "98.60 (1 more diverged)"


def test_a_row_is_compared_with_one_that_is_not_shown():
    (_, (cells,)), *_ = beside("", ROWS[1:3], RECORDS, COLUMNS, unseen=ROWS[:1]).blocks
    assert [cell.better for cell in cells[1:]] == [True, False, False, True]


def test_a_narrow_terminal_folds_words_and_cuts_nothing():
    names = [f"runs/table1/mnist-laptop-normface-s{s}" for s in (10, 64)]
    console = Console(width=40, no_color=True)
    grid = Grid(
        "", ["", "m_cls deg", "gamma_min"], [("", [[Cell(n), Cell("81.25"), Cell("0.5")] for n in names])]
    )
    with console.capture() as captured:
        console.print(to_terminal(grid))
    assert "…" not in captured.get()
    assert "".join(line.split()[0] for line in captured.get().splitlines()[1:]).endswith("".join(names))


def test_without_printed_numbers_there_is_no_column_for_them():
    bare = [row._replace(paper={}) for row in ROWS]
    assert list(beside("", bare, RECORDS, COLUMNS).columns) == ["", "acc %", "m_cls"]
    assert "paper" not in to_markdown(beside("", bare, {}, COLUMNS))


def test_the_terminal_has_it_all_without_colors():
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(to_terminal(grid()))
    text = console.export_text()
    rows = [line.split() for line in text.splitlines()]
    assert ["CE", "98.50", "99.12", "80.0", "87.4"] in rows
    assert [
        "CE",
        "+",
        "0.5*R_sm",
        "98.70",
        "±",
        "0.14",
        "(2)*",
        "99.10",
        "80.0",
        "±",
        "0.0",
        "(2)",
        "95.4*",
    ] in rows
    assert ["others"] in rows
    assert "* better than the row it extends: acc % in 1 of 1" in " ".join(text.split())


def test_markdown_keeps_stars_and_underscores():
    text = to_markdown(grid())
    assert r"| CE + 0.5\*R\_sm | **98.70 ± 0.14 (2)** | 99.10 | 80.0 ± 0.0 (2) | **95.4** |" in text
    assert "| --- | ---: | ---: | ---: | ---: |" in text
    assert "Bold: better than the row it extends: acc" in text
    assert len({line.count("|") - line.count(r"\|") for line in text.splitlines() if "|" in line}) == 1


def test_html_escapes_what_it_is_given():
    text = html_table(Grid("<b>", ["a&b", "n"], [("<i>", [[Cell("<script>"), Cell("1", True)]])]))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "&lt;i&gt;" in text
    assert '<td class="number"><strong>1</strong></td>' in text


def test_a_page_is_filled_between_its_marks_again_and_again(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("top\n<!-- a -->\nold\n<!-- end a -->\nmiddle\n<!-- b -->\n<!-- end b -->\nend\n")
    for text in ("first\n", "second\n"):
        fill(page, "a", text)
    assert page.read_text() == (
        "top\n<!-- a -->\nsecond\n<!-- end a -->\nmiddle\n<!-- b -->\n<!-- end b -->\nend\n"
    )
    with pytest.raises(ValueError, match="has no markers for c"):
        fill(page, "c", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["page.md"]
