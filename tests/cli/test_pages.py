"""`tammes report` and `tammes inspect` through `main`."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tammes.cli import main
from tammes.training import RunFolder


def test_report_writes_the_page_of_a_run_into_its_folder(run, capsys):
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"The page is {run / 'report.html'}.\n"
    text = (run / "report.html").read_text()
    result = RunFolder(run).finished()
    assert f"{100 * result['metrics']['accuracy']:.2f} %" in text
    assert f"{result['metrics']['class_margin_deg']:.2f}°" in text
    assert text.count('data-tip="') > 40  # curves, bars, samples
    for title in ("How it came about", "Samples", "Worst classes", "Prototypes", "Map", "Settings"):
        assert title in text


def test_report_of_several_runs_is_one_page_where_it_is_told(run, photos, tmp_path, capsys):
    other, page = tmp_path / "other", tmp_path / "pages" / "both.html"
    words = ["train", str(photos), "--model", "cnn4", "--epochs", "1", "--objective", "CE"]
    assert main([*words, "--out", str(other)]) == 0
    assert main(["report", str(run), str(other), "--out", str(page)]) == 0
    text = page.read_text()
    assert text.count("<article") == 2
    base = Path(os.path.commonpath([run, other]))
    for path, objective in ((run, "NormFace(s=10) + 0.5*R_sm"), (other, "CE")):
        assert f"<td>{path.relative_to(base)}</td><td>{objective}</td>" in text  # named as they differ
    (other / "result.json").unlink()
    capsys.readouterr()
    assert main(["report", str(run), str(other)]) == 1
    assert "has no result yet. Finish it: tammes train --resume" in capsys.readouterr().err


def test_report_of_all_in_a_folder_works_twice(run, tmp_path, capsys, monkeypatch):
    shutil.copytree(run, tmp_path / "runs" / "a")
    shutil.copytree(run, tmp_path / "runs" / "b")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["report", *map(str, sorted(Path("runs").iterdir()))]) == 0
        assert capsys.readouterr().out == "The page is runs/report.html.\n"
    shutil.copytree(run, tmp_path / "runs" / "demo-1" / "1")
    shutil.copytree(run, tmp_path / "runs" / "demo-1" / "2")
    assert main(["report", *map(str, sorted(Path("runs").iterdir())), "--out", "four.html"]) == 0
    assert Path("four.html").read_text().count("<article") == 4
    assert main(["compare", "runs/a", "runs/demo-1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["run"] for row in shown] == ["runs/a", "runs/demo-1/1", "runs/demo-1/2"]
    absolute = str(tmp_path / "runs" / "b")
    assert main(["report", "runs/a", absolute, "runs/b", "--out", "page.html"]) == 0
    assert Path("page.html").read_text().count("<article") == 2
    capsys.readouterr()
    assert main(["report", "runs/a", "--out", "runs"]) == 1
    assert "runs is a folder. Name a file with --out" in capsys.readouterr().err


def test_a_damaged_log_or_result_is_named(run, tmp_path, capsys):
    out = shutil.copytree(run, tmp_path / "run")
    (out / "log.jsonl").write_text("{'kind'\n")
    assert main(["report", str(out)]) == 1
    assert f"{out / 'log.jsonl'} is no log of a run" in capsys.readouterr().err
    (out / "result.json").write_text("{}")
    assert main(["report", str(out)]) == 1
    assert f"{out / 'result.json'} is no record of a run" in capsys.readouterr().err


def test_a_run_whose_arrays_are_damaged_is_named(run, photos, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", str(photos), "--model", "cnn4", "--epochs", "1", "--out", str(out)]) == 0
    whole = (out / "margins.npz").read_bytes()
    (out / "margins.npz").write_bytes(whole[: len(whole) // 2])
    capsys.readouterr()
    assert main(["report", str(out)]) == 1
    assert "margins.npz cannot be read as a numpy archive" in capsys.readouterr().err
    (out / "margins.npz").unlink()
    assert main(["report", str(out)]) == 1
    assert f"There is no file {out / 'margins.npz'}." in capsys.readouterr().err


def test_inspecting_a_run_measures_it_again_and_agrees(run, capsys):
    assert main(["inspect", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stored = RunFolder(run).finished()["metrics"]
    assert {name: found[name] for name in stored} == stored
    assert found["notes"] == ["Measured on the test images, with the last weights."]
    assert (run / "inspect.html").is_file()


def test_inspecting_a_file_writes_the_page_beside_it(tmp_path, capsys):
    """Two kinds of three on the axes, one of which is taken for the other."""
    embeddings = np.eye(3)[[0, 0, 1, 1, 2, 0]]
    labels = np.array(["ant", "ant", "bee", "bee", "cat", "cat"])
    given = {"embeddings": embeddings, "labels": labels, "prototypes": np.eye(3)}
    np.savez(tmp_path / "model.npz", **given, classes=np.array(["ant", "bee", "cat"]))
    assert main(["inspect", str(tmp_path / "model.npz")]) == 0
    said = capsys.readouterr().out
    assert "83.33" in said  # five of six
    assert "cat    ant" in said
    text = (tmp_path / "model-margins.html").read_text()
    assert "model is right on 83.33 % of 6 samples of 3 classes" in text
    assert "model.npz" in text


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"embeddings": np.ones((4, 2))}, "missing: labels"),
        ({"embeddings": np.ones((4, 2)), "labels": np.arange(3)}, "got shape (3,) for 4 embeddings"),
        ({"embeddings": np.ones((4, 2)), "labels": np.array([None] * 4)}, "holds Python objects"),
        ({"embeddings": np.full((4, 2), np.nan), "labels": np.arange(4) % 2}, "None of the 4 embeddings"),
    ],
)
def test_a_bad_file_is_one_line(arrays, message, tmp_path, capsys):
    np.savez(tmp_path / "bad.npz", **arrays)
    assert main(["inspect", str(tmp_path / "bad.npz")]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npz"]


def test_a_file_that_is_no_archive_is_one_line(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", np.ones((4, 2)))
    (tmp_path / "text.npz").write_text("embeddings")
    for name in ("rows.npy", "text.npz"):
        assert main(["inspect", str(tmp_path / name)]) == 1
        assert "it is no .npz file" in capsys.readouterr().err
