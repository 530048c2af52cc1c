"""The errata page: every point is there, and the tests it names exist where it says."""

import re
from pathlib import Path

THEOREMS = Path(__file__).parent
PAGE = (THEOREMS.parents[1] / "docs" / "errata.md").read_text(encoding="utf-8")
WITHOUT_A_TEST = 13  # slips in printed tables


def test_every_erratum_names_tests_that_exist():
    sections = re.split(r"^## (\d+)\. ", PAGE, flags=re.MULTILINE)
    numbers, texts = [int(number) for number in sections[1::2]], sections[2::2]
    assert numbers == list(range(1, 19))
    for number, text in zip(numbers, texts, strict=True):
        cited = re.split(r"\]\(\.\./tests/theorems/(test_\w+\.py)\)", text)
        assert (len(cited) > 1) != (number == WITHOUT_A_TEST)
        for file, after in zip(cited[1::2], cited[2::2], strict=True):
            source = (THEOREMS / file).read_text(encoding="utf-8")
            names = re.findall(r"`::(test_\w+)`", after.split("[test_")[0])
            assert names
            assert [name for name in names if f"def {name}(" not in source] == []
