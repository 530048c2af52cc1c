"""The README and the docs agree with the records: every result table, and every number of a marked sentence.

A table between `<!-- NAME -->` and `<!-- end NAME -->` must be what its command writes from the records now.
A paragraph below `<!-- numbers: results/a.json ... -->` may only have numbers with a decimal point that are
in those files, rounded, or in per cent, or, where it says so by naming `paper`, in the paper's own tables.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tammes.lab.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAPER = ROOT / "src" / "tammes" / "lab" / "recipes" / "paper"
TABLE = re.compile(r"^<!-- (?!end |numbers:)([a-z0-9_: -]+) -->$", re.MULTILINE)
MARK = re.compile(r"^<!-- numbers: (.*?) -->\n((?:.+\n)+)", re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?![\w.]*\w)")


def words_of(name: str) -> list[str]:
    """The command behind a table of that name."""
    match name.split():
        case ["claims"]:
            return ["claims", "--fill"]
        case ["claims", "short"]:
            return ["claims", "--fill-short"]
        case ["losses"]:
            return ["losses", "--fill"]
        case ["limits", part]:
            return ["limits", "--part", part, "--show", "--fill"]
        case ["cifar10"]:
            return ["cifar10", "--show", "--seeds", "3", "--fill"]
        case [("longtail" | "facelosses") as table]:
            return [table, "--show", "--seeds", "2", "--fill"]
        case ["ablation", dataset]:
            return ["ablation", "--show", "--seeds", "3", "--dataset", dataset, "--fill"]
        case ["table1", dataset, preset]:
            return ["table1", "--show", "--dataset", dataset, "--preset", preset, "--fill"]
        case ["table2", dataset, imbalance, preset]:
            where = ["--dataset", dataset, "--imbalance", imbalance, "--preset", preset]
            return ["table2", "--show", *where, "--fill"]
        case ["table3", dataset, preset]:
            return ["table3", "--show", "--dataset", dataset, "--preset", preset, "--fill"]
        case [("table4" | "table7") as table, preset]:
            return [table, "--show", "--preset", preset, "--fill"]
    raise LookupError(f"no command is known to write the table {name!r}")


OF_BENCHMARKS = ("photos", "photos-memory", "head", "head few classes", "sharded", "packing")


def tables() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for name in TABLE.findall(page.read_text()):
            # The first takes minutes, tests/lab/cli/test_reproduce_table2.py has its verdict; the others are
            # written by benchmarks and tested with them.
            if name not in ("free_features", *OF_BENCHMARKS):
                yield str(page.relative_to(ROOT)), name


@pytest.mark.parametrize(("page", "name"), list(tables()))
def test_a_table_is_what_its_command_writes(page, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    copy = tmp_path / "page.md"
    copy.write_text((ROOT / page).read_text())
    assert main(["reproduce", *words_of(name), str(copy)]) == 0, capsys.readouterr().err
    assert copy.read_text() == (ROOT / page).read_text(), f"refresh {page}: tammes reproduce {words_of(name)}"


def numbers_in(content: Any) -> Iterator[float]:
    """Every number of a record; curves and histograms are left out."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key not in ("curves", "histograms", "prototypes", "features"):
                yield from numbers_in(value)
    elif isinstance(content, list):
        for value in content:
            yield from numbers_in(value)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield float(content)


def rounds_to(text: str, value: float) -> bool:
    """Whether `value`, or a hundred times it, is `text` when rounded to its digits (halves either way)."""
    step = float(Decimal(1).scaleb(Decimal(text).as_tuple().exponent))  # type: ignore
    return any(math.isclose(float(text), v, abs_tol=0.5001 * step, rel_tol=0) for v in (value, 100 * value))


def unfounded(sources: str, paragraph: str) -> list[str]:
    """The numbers of a paragraph that none of its sources has."""
    paths = [p for s in sources.split() for p in (PAPER.glob("*.json") if s == "paper" else ROOT.glob(s))]
    known = [value for path in paths for value in numbers_in(json.loads(path.read_text()))]
    return [text for text in NUMBER.findall(paragraph) if not any(rounds_to(text, value) for value in known)]


def marked() -> Iterator[tuple[str, str, str]]:
    for page in PAGES:
        for sources, paragraph in MARK.findall(page.read_text()):
            yield str(page.relative_to(ROOT)), sources, paragraph


@pytest.mark.parametrize(("page", "sources", "paragraph"), list(marked()))
def test_the_numbers_of_a_marked_paragraph_are_in_its_records(page, sources, paragraph):
    assert NUMBER.findall(paragraph), "the paragraph has no number with a decimal point"
    assert not unfounded(sources, paragraph)


def test_a_number_that_is_in_no_record_is_found_out():
    sources = "results/superseded/mnist-cnn4-lr0.01-normface-s64.json"
    assert unfounded(sources, "82.51 deg, 99.06 % at s = 64") == []
    assert unfounded(sources, "82.52 deg, 99.06 %") == ["82.52"]
    assert unfounded(f"{sources} paper", "94.01 and 82.51") == []


def test_every_superseded_record_says_why_and_by_what():
    found = list((ROOT / "results" / "superseded").glob("*.json"))
    assert found
    for path in found:
        why = json.loads(path.read_text())["superseded"]
        assert len(why["reason"]) > 20
        assert (ROOT / why["by"]).is_file()
