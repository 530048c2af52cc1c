"""`tammes reproduce table1` and `figures`, from nothing to the printed table, on a handful of images."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tammes.lab.cli import main
from tammes.lab.cli.printing import print_runs
from tammes.lab.recipes import table1
from tammes.lab.recipes.row_records import read_rows


@pytest.fixture(scope="module")
def results(few_digits, tmp_path_factory):
    """Three rows of MNIST, trained through the command line in one folder."""
    folder = tmp_path_factory.mktemp("table1")
    rows = ["--rows", "ce", "normface-s10*d", "ce+*"]
    words = ["reproduce", "table1", *rows, "--data-root", str(few_digits(40))]
    assert main([*words, "--out", str(folder / "out"), "--runs", str(folder / "runs")]) == 0
    return folder


def test_rows_that_were_run_are_printed_and_the_others_are_blank(results, capsys):
    assert main(["reproduce", "table1", "--show", "--out", str(results / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    record = read_rows(table1.table(dataset="mnist").rows, results / "out")["mnist-laptop-ce"]
    accuracy = f"{100 * record['metrics']['accuracy']:.2f}"
    ce = next(line for line in lines if line.startswith("CE  ")).split()
    assert ce[1].rstrip("*") == accuracy
    assert ce[2] == "99.11"
    blank = next(line for line in lines if line.startswith("CosFace (s=64)  ")).split()
    assert [word.rstrip("*") for word in blank] == ["CosFace", "(s=64)", "99.25", "89.50", "0.7581"]
    assert any("the paper's: cnn4-padded, 100 epochs" in line for line in lines)
    assert main(["reproduce", "table1", "--show", "--rows", "rsm", "ce", "--out", str(results / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["CE", "R_sm"]  # the table's order
    assert "CosFace" not in "".join(lines)


def test_the_table_fills_its_place_in_a_page(results, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("# Title\n<!-- table1 mnist laptop -->\n<!-- end table1 mnist laptop -->\n")
    words = ["reproduce", "table1", "--show", "--out", str(results / "out"), "--fill", str(page)]
    assert main(words) == 0
    assert r"| CE + 0.5 R\_sm |" in page.read_text()
    assert main([*words, "--dataset", "cifar10"]) == 1
    assert "has no markers for table1 cifar10 laptop" in capsys.readouterr().err


def test_the_table_is_a_page_too(results, tmp_path):
    page = tmp_path / "page.html"
    assert main(["reproduce", "table1", "--show", "--out", str(results / "out"), "--page", str(page)]) == 0
    text = page.read_text()
    assert "<h1>Table 1 on MNIST, laptop preset</h1>" in text
    assert '<td>CE</td><td class="number">' in text
    assert '<td class="number"><strong>95.41</strong></td>' in text


def test_the_data_root_is_said_and_a_missing_one_is_an_error_of_one_line(tmp_path, capsys):
    words = ["reproduce", "table1", "--dataset", "cifar100", "--data-root", str(tmp_path)]
    assert main([*words, "--rows", "ce", "--out", str(tmp_path / "o"), "--runs", str(tmp_path / "r")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == f"Data: cifar100 below {tmp_path}"
    assert errors[-1].startswith("tammes: cifar100 is not complete in")


def test_a_row_is_checked_by_training_it_again(results, few_digits, tmp_path, capsys):
    words = ["reproduce", "table1", "--out", str(results / "out"), "--runs", str(tmp_path / "again")]
    words += ["--data-root", str(few_digits(40)), "--check"]
    assert main([*words, "ce"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["accuracy", "class_margin_deg", "sample_margin"]
    assert all(line.endswith("agrees") for line in lines)
    assert main([*words, "cosface-s64"]) == 1
    assert "There is no finished record of mnist-laptop-cosface-s64" in capsys.readouterr().err


def test_an_unknown_row_is_named(tmp_path, capsys):
    assert main(["reproduce", "table1", "--rows", "cosface-s65", "--out", str(tmp_path)]) == 1
    assert "There is no row 'cosface-s65'. Did you mean" in capsys.readouterr().err


def test_figures_are_drawn_of_what_was_trained(results, tmp_path, capsys):
    words = ["reproduce", "figures", "--results", str(results / "out"), "--out", str(tmp_path / "f")]
    assert main(words) == 0
    assert sorted(path.name for path in (tmp_path / "f").iterdir()) == [
        "laptop-norm-ratios.png",
        "mnist-laptop-curves-ce.png",
        "mnist-laptop-fixed.png",
        "mnist-laptop-scales.png",
    ]
    assert "Not drawn, because no rows are finished: mnist-laptop-cosface-s64" in capsys.readouterr().out
    assert main(["reproduce", "figures", "--results", str(tmp_path)]) == 1
    assert "no finished row of preset laptop" in capsys.readouterr().err


def test_ctrl_c_with_two_jobs_stops_both(few_digits, tmp_path):
    words = ["reproduce", "table1", "--data-root", str(few_digits(4000)), "--rows", "ce", "rsm"]
    command = [sys.executable, "-m", "tammes", *words, "--jobs", "2", "--out", "out", "--runs", "runs"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    logs = [tmp_path / "runs" / f"mnist-laptop-{name}" / "log.jsonl" for name in ("ce", "rsm")]
    deadline = time.monotonic() + 120
    while not all(log.exists() for log in logs) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("tammes: Interrupted. Progress is saved")
    assert "Traceback" not in errors
    assert "Table 1 on MNIST" in printed  # the table, as far as it is
    assert list((tmp_path / "runs").glob("*/checkpoint-*"))


def test_runs_on_different_data_are_kept_apart(capsys):
    metrics = {
        "accuracy": 0.5,
        "class_margin_deg": 60.0,
        "class_margin_maximum_deg": 90.0,
        "sample_margin": 0.1,
        "sample_margin_ceiling": 1.0,
        "gamma_min": -0.2,
    }
    result = {"config": {"objective": "CE"}, "seconds": 3.0, "metrics": metrics}
    runs = [("a", result | {"data": "x"}), ("b", result | {"data": "y"}), ("c", result | {"data": "x"})]
    print_runs(runs)
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    kept = [line for line in lines if line and line[0] in ("on", "a", "b", "c")]
    assert kept == [["on", "x"], ["a", "CE"], ["c", "CE"], ["on", "y"], ["b", "CE"]]
    print_runs(runs[:1])
    assert "listed separately" not in capsys.readouterr().out
