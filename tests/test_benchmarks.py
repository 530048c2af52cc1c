"""`make bench` runs every benchmark there is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are not part of an installed package")

from benchmarks import __main__ as bench
from benchmarks import head, head_tables, packing, photos, photos_memory, sharded

ROOT = Path(__file__).parents[1]


WITH_ARGUMENTS = {"before_after"}
"""Needs a second checkout to compare with, so `make bench` cannot run it."""


def test_no_benchmark_is_left_out():
    files = Path(bench.__file__).parent.glob("*.py")
    with_main = {file.stem for file in files if "\ndef main(" in file.read_text()}
    assert "train" in with_main
    assert set(bench.BENCHMARKS) == with_main - WITH_ARGUMENTS
    assert with_main >= WITH_ARGUMENTS


def test_training_without_its_data_is_left_out_with_a_word(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TAMMES_DATA", str(tmp_path))
    bench.BENCHMARKS["train"]()
    assert "benchmarks.train is left out" in capsys.readouterr().err


def test_the_table_of_photos_is_what_the_records_say(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = ROOT / "docs" / "photos.md"
    copy = tmp_path / "page.md"
    copy.write_text(page.read_text())
    photos.main(["--table", str(copy)])
    assert copy.read_text() == page.read_text(), (
        "refresh it: python -m benchmarks.photos --table docs/photos.md"
    )


def test_records_of_photos_become_means_over_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(photos, "RESULTS", tmp_path)
    row = {"set": "flowers", "contender": "usual", "image_size": 128, "seconds": 600, "cpu_seconds": 900}
    for seed, accuracy in enumerate((0.9, 0.93)):
        (tmp_path / f"{seed}.json").write_text(json.dumps(row | {"seed": seed, "accuracy": accuracy}))
    ours = row | {"contender": "tammes", "seed": 1, "accuracy": 0.95, "cpu_seconds": 810}
    (tmp_path / "ours.json").write_text(json.dumps(ours))
    assert "| 91.50 | 90.00 | 93.00 | 10.0 | 15.0 | 128 | 2 | 1.00 |" in photos.table()
    assert "| 95.00 | 95.00 | 95.00 | 10.0 | 13.5 | 128 | 1 | 0.90 |" in photos.table()


def test_both_contenders_have_the_same_settings(tmp_path):
    (tmp_path / "flowers" / "train" / "rose").mkdir(parents=True)
    ours, usual = (photos.resolve(photos.settings("flowers", c, tmp_path, 3)) for c in ("tammes-ce", "usual"))
    assert ours == usual
    assert (ours.augment_style, ours.epochs, ours.evaluate_every, ours.seed) == ("photos", 6, 6, 3)


def test_the_subsets_of_photos_are_fixed(tmp_path, capsys):
    source = tmp_path / "checkout"
    names = [f"flowers/train/1/{i:02d}.jpg" for i in range(12)] + ["flowers/test/1/a.jpg"]
    names += [
        f"GTSRB/Final_Training/Images/00003/0000{track}_0000{i}.ppm" for track in (0, 1) for i in (0, 1)
    ]
    names += [f"GTSRB/Final_Test/Images/{i:05d}.ppm" for i in range(8)]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    rows = [f"{i:05d}.ppm;{i}" for i in range(8)]
    (source / "GTSRB/Final_Test/GT-final_test.csv").write_text("\n".join(["Filename;ClassId", *rows]))
    photos.main(["--data", str(tmp_path / "data"), "--copy-from", str(source)])
    copied = sorted(str(p.relative_to(tmp_path / "data")) for p in (tmp_path / "data").rglob("*.*"))
    signs = ["test/00000/00000.ppm", "test/00006/00006.ppm"]
    signs += [f"train/00003/0000{track}_00001.ppm" for track in (0, 1)]
    flowers = ["test/1/a.jpg", *(f"train/1/{i:02d}.jpg" for i in range(10))]
    assert copied == [f"flowers/{name}" for name in flowers] + [f"gtsrb/{name}" for name in signs]


def test_the_table_of_memory_is_what_the_record_says(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    page, copy = ROOT / "docs" / "photos.md", tmp_path / "page.md"
    copy.write_text(page.read_text())
    photos_memory.main(["--table", str(copy)])
    assert copy.read_text() == page.read_text(), (
        "refresh it: python -m benchmarks.photos_memory --table docs/photos.md"
    )


def test_a_sample_of_photos_keeps_the_layout(tmp_path):
    for name in ("train/rose", "train/tulip", "test/rose"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10):
            (tmp_path / "photos" / name / f"{i}.JPG").write_text("")
    (tmp_path / "photos" / "notes.txt").write_text("")
    photos_memory.sample(tmp_path / "photos", 15, tmp_path / "some")
    links = [path.relative_to(tmp_path / "some") for path in (tmp_path / "some").rglob("*.JPG")]
    assert sorted({str(link.parent) for link in links}) == ["test/rose", "train/rose", "train/tulip"]
    assert len(links) == 15


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_child_processes_counts():
    hold = "import time; held = b'x' * 300_000_000; time.sleep(1)"
    inside = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    assert photos_memory.peak([sys.executable, "-c", inside]) > 250


def test_the_tables_of_the_head_are_what_the_record_says(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = {tmp_path / name: (ROOT / where / name).read_text() for where, name in HEAD_PAGES}
    for copy, text in pages.items():
        copy.write_text(text)
    head.main(["--table", *map(str, pages)])
    for copy, text in pages.items():
        assert copy.read_text() == text, (
            "refresh it: python -m benchmarks.head --table README.md docs/scaling.md"
        )


HEAD_PAGES = [("", "README.md"), ("docs", "scaling.md")]


def test_the_table_of_the_sharded_head_is_what_the_record_says(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    page, copy = ROOT / "docs" / "sharded.md", tmp_path / "page.md"
    copy.write_text(page.read_text())
    sharded.main(["--table", str(copy)])
    assert copy.read_text() == page.read_text(), (
        "refresh it: python -m benchmarks.sharded --table docs/sharded.md"
    )


def test_the_table_of_packings_is_what_the_record_says(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    page, copy = ROOT / "docs" / "packing.md", tmp_path / "page.md"
    copy.write_text(page.read_text())
    packing.main(["--table", str(copy)])
    assert copy.read_text() == page.read_text(), (
        "refresh it: python -m benchmarks.packing --table docs/packing.md"
    )


def test_a_row_is_no_worse_than_a_larger_code_without_some_points():
    """Nine points of a good code of ten are further apart than a poor code of nine."""
    poor = packing.cell(9, 4, restarts=1) | {"angle_deg": 70.0}
    good = packing.cell(10, 4)
    del good["restarts"]  # as in the oldest rows of the record
    rows = packing.mended([poor, good, packing.cell(8, 4)])
    assert [row["k"] for row in rows] == [8, 9, 10]
    assert rows[1]["angle_deg"] >= good["angle_deg"]
    assert [row["part_of"] for row in rows] == [None, 10, None]


KEEPER = """
import torch
from benchmarks import head

kept = {}

def keeper(batch):
    def step():
        if batch.k not in kept:
            kept[batch.k] = torch.ones(batch.k, 2**11)  # 32 MiB for 4,096 classes
    return step

idle = head.extra_megabytes(lambda batch: lambda: None, 8, 4096)
print(head.extra_megabytes(keeper, 8, 4096) - idle)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is measured on Linux")
def test_memory_that_a_contender_keeps_from_step_to_step_counts():
    # In a process of its own: memory that other tests freed may still be resident, and serve again unseen.
    done = subprocess.run(
        [sys.executable, "-c", KEEPER], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert float(done.stdout) == pytest.approx(32, abs=4)


def test_tables_of_the_head_from_a_record_as_it_is_written_now():
    contenders = dict.fromkeys(head.CONTENDERS, 1.25)
    million = {
        f"{name}, n=512, d=512, k=1000000": {"seconds": seconds, "peak GiB": 4.5}
        for name, seconds in (("ArcFace, lean", 3), ("pytorch-metric-learning ArcFace", 12))
    }
    large = {
        "ArcFace(s=64, m=0.5), lean": 1.14,
        "ArcFace(s=64, m=0.5), default": 1.06,
        "torch linear_cross_entropy, whole": 1.2,
        "torch linear_cross_entropy, chunked": 1.3,
        "pytorch-metric-learning ArcFace": 2.5,
    }
    error = {"loss": 1e-7, "of embeddings": 2e-6, "of prototypes": 3e-6}
    found = {
        "small": {"CosFace, k=9": {"tammes": 0.9, "tammes, dense": 1, "pytorch-metric-learning": 1.2}},
        "large": dict.fromkeys(head_tables.LARGE, large),
        "memory": dict.fromkeys(head_tables.LARGE, contenders),
        "million": million,
        "half": {"n=8": {"fast_products": 0.7, "relative errors": {"float32": error}}},
        "stamp": {"versions": {"torch": "2.15.0", "pytorch-metric-learning": "2.9.0"}},
    }
    many, few = head_tables.many_classes(found), head_tables.few_classes(found)
    assert "| ArcFace, lean | 1.14 | 1.14 | 1 MB |" in many
    assert "| pytorch-metric-learning 2.9.0, ArcFace | 2.50 | 2.50 | 1 MB |" in many
    assert "takes 0.25 times as long" in many
    assert "0.70 times as long" in few
    assert "| float32 | 1.0e-07 | 2.0e-06 | 3.0e-06 |" in few
    assert "| the same, chunked | 1.30 | 1.30 | 1 MB |" in many
