"""`tammes reproduce table2` and `table7` from the command to the record, on a small made CIFAR-10."""

import json

import numpy as np
import pytest

from tammes.lab.cli import main
from tammes.lab.recipes import table2, table2_free_features


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    """A data root whose cifar10.npz has 100 training images of noise in each class; two short epochs."""
    rng = np.random.default_rng(0)
    labels = np.arange(1000) % 10
    images = (rng.integers(0, 60, (1000, 32, 32, 3)) + 18 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=labels, x_test=images[:50], y_test=labels[:50])
    for name, value in {"model": "cnn4", "epochs": 2, "evaluate_every": 1}.items():
        monkeypatch.setitem(table2.LAPTOP, name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> None:
    assert main(["reproduce", *words]) == 0


def test_rows_are_trained_recorded_shown_and_drawn(cifar10, capsys):
    words = ["table2", "--data-root", ".", "--rows", "normface-0", "normface-10", "--figures"]
    run(*words)
    shown = capsys.readouterr().out
    assert "NormFace (lambda=10)" in shown
    assert "72.37" in shown  # the paper's accuracy stands beside ours
    start = "cifar10-long_tailed-100-laptop-"
    record = json.loads((cifar10 / f"results/table2/{start}normface-10.json").read_text())
    assert record["class_counts"] == [100, 59, 35, 21, 12, 7, 4, 2, 1, 1]
    assert record["config"]["objective"] == "NormFace(s=5) + 1000*R_w"
    assert {"many", "medium", "few", "ece"} - {"many"} <= set(record["metrics"])
    assert len(record["curves"]["class_margin_deg"]) == 2
    drawn = sorted(p.name for p in (cifar10 / "results/table2").glob("*.png"))
    assert drawn == [f"{start}curves.png", f"{start}normface-histograms.png"]
    before = (cifar10 / f"results/table2/{start}normface-0.json").stat().st_mtime_ns
    run(*words)
    assert (cifar10 / f"results/table2/{start}normface-0.json").stat().st_mtime_ns == before


def test_the_choice_of_lambda_is_printed_beside_that_of_the_test_set(cifar10, capsys):
    run("table2", "--data-root", ".", "--rows", "ldam-0", "ldam-1", "--choose", "--imbalance", "step:10")
    shown = capsys.readouterr().out
    assert "LDAM (of the lambdas run)" in shown
    assert "lambda by held-out" in shown
    assert "35 of 40" in shown
    records = list((cifar10 / "results/table2").glob("*held-out.json"))
    assert len(records) == 2
    assert all(json.loads(p.read_text())["config"]["hold_out"] == 0.2 for p in records)


def test_a_table_without_runs_has_blanks_and_the_papers_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("table2", "--show", "--dataset", "cifar100", "--imbalance", "step:10")
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if line.startswith("LM-Softmax (lambda=20)"))
    assert line.split()[2:] == ["60.23*", "76.77*"]


def test_two_stages_follow_each_other(cifar10, capsys):
    run("table7", "--data-root", ".", "--rows", "ce", "crt", "tau")
    shown = capsys.readouterr().out
    assert "tau-normalization" in shown
    record = json.loads((cifar10 / "results/table2/cifar10-long_tailed-100-laptop-crt.json").read_text())
    assert record["config"]["start"] == "cifar10-long_tailed-100-laptop-ce"
    run("table7", "--show", "--rows", "ce", "crt", "tau")
    assert capsys.readouterr().out == shown


def test_free_features_are_computed_stored_drawn_and_judged(tmp_path, monkeypatch, capsys):
    """Two settings stand for 40: at lambda = 0 the paper's run reached the optimum of one."""
    some = [("cifar10", "long_tailed:10", "NormFace"), ("cifar10", "step:100", "CosFace")]
    some = [table2_free_features.Setting(*each) for each in some]
    monkeypatch.setattr(table2_free_features, "all_settings", lambda: iter(some))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text("<!-- free_features -->\n<!-- end free_features -->\n")
    run("table2", "--free-features", "--fill", "page.md")
    assert "| 82.55 | 82.60 |" in (tmp_path / "page.md").read_text()
    shown = capsys.readouterr().out
    assert "1 of 2 printed margins are the optimum's" in shown
    assert "not converged: CosFace step:100 (19.78" in shown
    record = json.loads((tmp_path / "results/table2/free_features.json").read_text())
    assert [row["printed_deg"] for row in record["rows"] if row["strength"] == 0] == [82.6, 19.78]
    assert record["versions"]["torch"]
    assert (tmp_path / "results/table2/free_features.png").stat().st_size > 10_000
