"""`tammes report` and `tammes inspect` through `main`."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tammes.lab.cli import main
from tammes.lab.training import RunFolder


def test_report_writes_the_page_of_a_run_into_its_folder(run, capsys):
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"Report written to {run / 'report.html'}.\n"
    text = (run / "report.html").read_text()
    result = RunFolder(run).finished()
    assert f"{100 * result['metrics']['accuracy']:.2f} %" in text
    assert f"{result['metrics']['class_margin_deg']:.2f}°" in text
    assert text.count('data-tip="') > 40  # curves, bars, samples
    titles = ("Classes, worst first", "Map", "Sample margins", "Prototypes", "Training curves", "Settings")
    for title in titles:
        assert title in text


def test_report_of_several_runs_is_one_page_at_the_given_path(run, photos, tmp_path, capsys):
    other, page = tmp_path / "other", tmp_path / "pages" / "both.html"
    words = ["train", str(photos), "--model", "cnn4", "--epochs", "1", "--objective", "CE"]
    assert main([*words, "--out", str(other)]) == 0
    assert main(["report", str(run), str(other), "--out", str(page)]) == 0
    text = page.read_text()
    assert text.count("<article") == 2
    base = Path(os.path.commonpath([run, other]))
    for path, objective in ((run, "NormFace(s=10) + 0.5*R_sm"), (other, "CE")):
        assert f"<td>{path.relative_to(base)}</td><td>{objective}</td>" in text  # named as they differ


@pytest.mark.parametrize("command", ["report", "compare"])
def test_unfinished_runs_are_skipped_with_a_message(run, tmp_path, capsys, command):
    done, other = shutil.copytree(run, tmp_path / "done"), shutil.copytree(run, tmp_path / "other")
    (other / "result.json").unlink()
    (tmp_path / "empty").mkdir()
    assert main([command, str(done), str(other), str(tmp_path / "empty")]) == 0
    said = capsys.readouterr()
    assert f"skipping {other}: not finished. Resume it: tammes train --resume" in said.err
    assert f"skipping {tmp_path / 'empty'}: it is not a run folder." in said.err
    assert str(other) not in said.out
    assert main([command, str(other)]) == 1
    assert "has no result yet. Finish it: tammes train --resume" in capsys.readouterr().err
    assert main([command, str(other), str(tmp_path / "empty")]) == 1
    assert "None of the 2 folders holds a finished run" in capsys.readouterr().err
    assert main([command, str(done), str(tmp_path / "typo")]) == 1
    assert "typo is not a run folder" in capsys.readouterr().err


def test_compare_has_a_column_for_what_differs(run, photos, tmp_path, capsys):
    other = tmp_path / "other"
    words = ["train", str(photos), "--model", "cnn4", "--epochs", "1", "--lr", "0.007"]
    objective = RunFolder(run).config.objective
    assert main([*words, "--objective", objective, "--out", str(other)]) == 0
    capsys.readouterr()
    assert main(["compare", str(run), str(other)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert " lr " in head
    assert "objective" not in head  # the same for both
    assert any("0.007" in line for line in lines)


def test_the_page_of_a_run_shows_its_photos(run):
    assert main(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    assert "Typical and odd examples" in text
    assert text.count("data:image/jpeg") > 3


def test_report_of_all_in_a_folder_works_twice(run, tmp_path, capsys, monkeypatch):
    shutil.copytree(run, tmp_path / "runs" / "a")
    shutil.copytree(run, tmp_path / "runs" / "b")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["report", *map(str, sorted(Path("runs").iterdir()))]) == 0
        assert capsys.readouterr().out == "Report written to runs/report.html.\n"
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
    assert main(["report", str(out)]) == 0
    assert f"{out / 'log.jsonl'} has 1 damaged lines" in capsys.readouterr().err
    (out / "result.json").write_text("{}")
    assert main(["report", str(out)]) == 1
    assert f"{out / 'result.json'} cannot be read: metrics" in capsys.readouterr().err


def test_a_run_whose_arrays_are_damaged_is_named(run, photos, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", str(photos), "--model", "cnn4", "--epochs", "1", "--out", str(out)]) == 0
    whole = (out / "margins.npz").read_bytes()
    (out / "margins.npz").write_bytes(whole[: len(whole) // 2])
    capsys.readouterr()
    assert main(["report", str(out)]) == 1
    assert "margins.npz cannot be read" in capsys.readouterr().err
    (out / "margins.npz").unlink()
    assert main(["report", str(out)]) == 1
    assert f"File {out / 'margins.npz'} does not exist." in capsys.readouterr().err


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
    assert "model classifies 83.33 % of 6 samples of 3 classes correctly" in text
    assert "model.npz" in text


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"embeddings": np.ones((4, 2))}, "missing: labels"),
        ({"embeddings": np.ones((4, 2)), "labels": np.arange(3)}, "got shape (3,) for 4 embeddings"),
        ({"embeddings": np.ones((4, 2)), "labels": np.array([None] * 4)}, "contains Python objects"),
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
        assert "Expected a complete .npz file" in capsys.readouterr().err


def test_inspecting_a_file_uses_the_prototypes_and_names_in_it(tmp_path, capsys):
    arrays = {"embeddings": [[1.0, 0.0], [0.8, 0.6], [0.0, 2.0]], "labels": [0, 0, 1]}
    arrays |= {"prototypes": [[1.0, 0.0], [0.0, 1.0]], "classes": ["cat", "dog"]}
    np.savez(tmp_path / "x.npz", **{name: np.array(values) for name, values in arrays.items()})
    assert main(["inspect", str(tmp_path / "x.npz"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sample_margin"] == pytest.approx(0.7333, abs=1e-4)
    assert found["notes"] == []
    assert "cat" in (tmp_path / "x-margins.html").read_text()
