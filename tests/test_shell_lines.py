"""Every `tammes` line of README and Get started runs through the entry point, on small data.

The words of a line stay as they are. What follows them makes it small: fewer epochs, small images, `--show`.
Where no flag does, less stands ready for the line: a record trained on few digits, a single setting.
"""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tammes.lab.cli import main
from tammes.lab.recipes import table2_free_features

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/get-started.md")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

NET = ["--model", "cnn4", "--epochs", "1", "--batch-size", "8", "--embedding", "8"]
TINY = [*NET, "--image-size", "16"]
PEOPLE = [*NET, "--image-size", "24", "--images-per-person", "2", "--lr", "0.001"]
SMALL = {
    "train digits": ["--batch-size", "512"],
    "train cifar10": [*NET, "--out", "runs/cifar10"],
    "train market1501": PEOPLE,
    "train faces/": TINY,
    "train ./photos": TINY,
    "reproduce toy": ["--epochs", "20", "--losses", "NormFace", "--out", "toy"],
    "reproduce table": ["--show"],
    "reproduce ablation": ["--show"],
    "reproduce table1 --check": [],
    "reproduce table2 --free-features": [],
    "reproduce figures": ["--results", "few", "--out", "figures"],
    "demo": ["--epochs", "1"],
}
"""What is added to lines that begin so."""


def shell_lines(text: str) -> list[str]:
    """The commands of the fenced blocks, without comments."""
    blocks = [block for kind, block in FENCE.findall(text) if kind in ("", "sh", "bash")]
    lines = "\n".join(blocks).replace("\\\n", " ").replace(".venv/bin/tammes ", "tammes ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.startswith("tammes ")]


LINES = {line: page for page in PAGES for line in shell_lines((ROOT / page).read_text(encoding="utf-8"))}


def test_lines_are_found():
    assert len(LINES) > 25
    assert [start for start in SMALL if not any(line.startswith(f"tammes {start}") for line in LINES)] == []
    text = "```\ntammes a b  # why\nmake test\n.venv/bin/tammes c\n```\n```python\ntammes = 1\n```\n"
    assert shell_lines(text) == ["tammes a b", "tammes c"]


def picture(color: tuple[int, int, int], path: Path, size: tuple[int, int] = (24, 24)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(str(path))).integers(-30, 30, (*size[::-1], 3))
    Image.fromarray((np.array(color) + noise).clip(0, 255).astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with all files that the lines mention."""
    here = tmp_path_factory.mktemp("place")
    colors = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
    for name, color in colors.items():
        for i in range(1, 9):
            picture(color, here / "photos" / name / f"{i}.png")
            picture(color, here / "faces" / name / f"{name}_{i:04d}.png")
        picture(color, here / "new" / f"{name}.jpg")
    pairs = ["2", "red\t1\t2", "green\t1\t2", "red\t1\tgreen\t1", "red\t2\tblue\t1"]
    (here / "pairs.txt").write_text("\n".join(pairs) + "\n")
    market = here / "data" / "Market-1501-v15.09.15"
    for person in range(1, 9):
        folder = "bounding_box_train" if person <= 4 else "bounding_box_test"
        for camera in (1, 2):
            for shot in (1, 2):
                name = f"{person:04d}_c{camera}s1_00000{shot}_01.jpg"
                picture((20 * person, 250 - 25 * person, 90), market / folder / name, (12, 24))
        if person > 4:
            picture(
                (20 * person, 250 - 25 * person, 90),
                market / "query" / f"{person:04d}_c1s1_000009_01.jpg",
                (12, 24),
            )
    shutil.copy(market / "query" / "0005_c1s1_000009_01.jpg", here / "query.jpg")
    rng = np.random.default_rng(0)
    arrays = {}
    for split, each in (("train", 200), ("test", 2)):
        labels = np.repeat(np.arange(10), each)
        arrays |= {
            f"x_{split}": rng.integers(0, 255, (len(labels), 32, 32, 3)).astype(np.uint8),
            f"y_{split}": labels,
        }
    np.savez(here / "data" / "cifar10.npz", **arrays)
    shutil.copytree(ROOT / "results", here / "results", ignore=shutil.ignore_patterns("*.png"))
    return here


@pytest.fixture
def checked_row(place, few_digits, monkeypatch):
    """The record of normface-s64 is one of few digits, so that training it again takes a second.

    It is also the only record in few/, for the figures.
    """
    monkeypatch.chdir(place)
    shutil.copy(few_digits(256) / "mnist.npz", place / "data")
    for record in (place / "results" / "table1").glob("mnist-laptop-normface-s64*"):
        record.unlink()
    assert main(["reproduce", "table1", "--rows", "normface-s64", "--data-root", "data"]) == 0
    (place / "few").mkdir()
    shutil.copy(place / "results" / "table1" / "mnist-laptop-normface-s64.json", place / "few")


@pytest.fixture
def one_setting(monkeypatch):
    """One of the 40 settings of Table 2 without a network."""
    only = table2_free_features.Setting("cifar10", "long_tailed:10", "NormFace")
    monkeypatch.setattr(table2_free_features, "all_settings", lambda: iter([only]))


def words_of(line: str, place: Path) -> list[str]:
    """The words after `tammes`, with the shell's wildcards expanded and a single epoch."""
    words = shlex.split(line)[1:]
    if "--epochs" in words:
        words[words.index("--epochs") + 1] = "1"
    return [found for word in words for found in (sorted(map(str, place_glob(place, word))) or [word])]


def place_glob(place: Path, word: str) -> list[Path]:
    return [path.relative_to(place) for path in place.glob(word)] if "*" in word and "/" in word else []


@pytest.mark.usefixtures("checked_row", "one_setting")
def test_every_line_runs(place, monkeypatch, capsys):
    """One test, since later lines use the runs of earlier ones."""
    monkeypatch.chdir(place)
    failed = {}
    for line in LINES:
        start = max((s for s in SMALL if line.removeprefix("tammes ").startswith(s)), key=len, default="")
        try:
            code = main([*words_of(line, place), *SMALL.get(start, [])])
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        if code:
            failed[line] = said.err or said.out[-500:]
    assert failed == {}
    assert len(list((place / "figures").glob("*.png"))) > 1
