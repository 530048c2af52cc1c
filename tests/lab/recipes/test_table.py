import dataclasses
import json
import shutil
import warnings

import numpy as np
import pytest

from tammes.lab.recipes import row_training
from tammes.lab.recipes.row_records import read_rows
from tammes.lab.recipes.row_training import run_rows
from tammes.lab.recipes.table import Row, Table, reproduce, seeded, select
from tammes.lab.report.tables import Column
from tammes.lab.training import Config, RunFolder, RunInterruptedError


@pytest.fixture(scope="module")
def done(root, tmp_path_factory):
    """Two rows, trained."""
    folder = tmp_path_factory.mktemp("done")
    settings = {"data": "mnist", "data_root": str(root), "model": "cnn4", "epochs": 2, "optimizer": "sgd"}
    rows = [Row("ce", "CE", Config(objective="CE", **settings)), Row("rsm", "R_sm", Config(**settings))]
    run_rows(rows, folder / "out", runs=folder / "runs")
    return folder, rows


def test_a_record_is_the_result_with_curves_and_histograms(done):
    folder, rows = done
    records = read_rows(rows, folder / "out")
    assert list(records) == ["ce", "rsm"]
    for key, record in records.items():
        result = RunFolder(folder / "runs" / key).result
        assert result is not None
        kept = result.keys() - {"config", "asked"}
        assert {name: record[name] for name in kept} == {name: result[name] for name in kept}
        assert "asked" not in record
        assert record["curves"]["epoch"] == [0, 1]
        assert record["curves"]["class_margin_deg"][-1] == record["metrics"]["class_margin_deg"]


def test_a_histogram_counts_every_test_sample_in_its_bin(done):
    folder, rows = done
    record = read_rows(rows, folder / "out")["ce"]
    arrays = np.load(folder / "runs" / "ce" / "margins.npz")
    for name in ("similarity", "sample_margin"):
        stored = record["histograms"][name]
        counts = stored["counts"]
        assert counts[0] > 0 < counts[-1]
        bins = [int(np.floor((value - stored["low"]) / stored["width"] + 1e-4)) for value in arrays[name]]
        expected = [bins.count(place) for place in range(len(counts))]
        # A value on the border of two bins may fall to either side.
        assert sum(abs(a - b) for a, b in zip(counts, expected, strict=True)) <= 2
        assert sum(counts) == 20


def test_finished_rows_are_not_trained_again(done, monkeypatch):
    folder, rows = done

    def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr(row_training, "train", refuse)
    run_rows(rows, folder / "out", runs=folder / "runs")
    with pytest.raises(AssertionError):
        run_rows([dataclasses.replace(rows[0], key="other")], folder / "out", runs=folder / "runs")


def test_a_record_lost_before_it_was_written_comes_out_the_same(done):
    folder, rows = done
    path = folder / "out" / "rsm.json"
    before = path.read_text()
    path.unlink()
    run_rows(rows, folder / "out", runs=folder / "runs")
    assert path.read_text() == before


def test_a_record_names_no_place_and_is_read_from_any(done, root):
    folder, rows = done
    text = (folder / "out" / "ce.json").read_text()
    assert str(root) not in text
    assert json.loads(text)["config"]["data"] == "mnist"
    moved = [dataclasses.replace(r, config=dataclasses.replace(r.config, data_root="away")) for r in rows]
    assert read_rows(moved, folder / "out") == read_rows(rows, folder / "out")


def test_the_record_of_another_run_is_refused(done):
    folder, rows = done
    other = dataclasses.replace(rows[0], config=dataclasses.replace(rows[0].config, epochs=3))
    with pytest.raises(ValueError, match=r"ce\.json holds a row with epochs=2, not 3"):
        read_rows([other], folder / "out")


def test_auto_precision_reads_records_of_any_processor(done, tmp_path):
    folder, rows = done
    auto = dataclasses.replace(rows[0], config=dataclasses.replace(rows[0].config, autocast="auto"))
    for precision in ("none", "bf16"):
        stored = json.loads((folder / "out" / "ce.json").read_text())
        stored["config"]["autocast"] = precision
        (tmp_path / "ce.json").write_text(json.dumps(stored))
        assert read_rows([auto], tmp_path).keys() == {"ce"}
    with pytest.raises(ValueError, match="autocast='bf16', not 'none'"):
        read_rows(rows[:1], tmp_path)


def test_a_setting_newer_than_the_record_counts_as_its_default(done, tmp_path):
    folder, rows = done
    stored = json.loads((folder / "out" / "ce.json").read_text())
    del stored["config"]["test_flip"]
    (tmp_path / "ce.json").write_text(json.dumps(stored))
    assert read_rows(rows, tmp_path).keys() == {"ce"}
    flipped = dataclasses.replace(rows[0], config=dataclasses.replace(rows[0].config, test_flip=True))
    with pytest.raises(ValueError, match="test_flip=False, not True"):
        read_rows([flipped], tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"config": 3}'])
def test_a_file_that_is_no_record_is_named(text, tmp_path, row):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json cannot be read"):
        read_rows([row("a")], tmp_path)


def test_a_diverging_loss_is_a_result(tmp_path, row):
    run_rows([row("wild", objective="CE", lr=1e30, epochs=3)], tmp_path / "out", runs=tmp_path / "runs")
    record = json.loads((tmp_path / "out" / "wild.json").read_text())
    assert record["diverged"].startswith("The loss became")
    assert "metrics" not in record


def test_an_interruption_keeps_the_rows_before_it(tmp_path, row, monkeypatch):
    real = row_training.train

    def interrupted(config, out, **options):
        if config.objective == "CE":
            raise RunInterruptedError("stop")
        return real(config, out, **options)

    monkeypatch.setattr(row_training, "train", interrupted)
    rows = [row("a"), row("b", objective="CE"), row("c")]
    with pytest.raises(RunInterruptedError, match="Progress is saved; rerun"):
        run_rows(rows, tmp_path / "out", runs=tmp_path / "runs")
    assert read_rows(rows, tmp_path / "out").keys() == {"a"}


def test_two_processes_come_to_the_same_records(tmp_path, row):
    rows = [row("a"), row("c", seed=3)]
    for jobs in (1, 2):
        run_rows(rows, tmp_path / f"out{jobs}", runs=tmp_path / f"runs{jobs}", jobs=jobs)
    one, two = (read_rows(rows, tmp_path / f"out{jobs}") for jobs in (1, 2))
    for key in one:
        assert one[key]["metrics"] == two[key]["metrics"]
    assert one["a"]["metrics"] != one["c"]["metrics"]


def test_a_table_is_reproduced_from_python(done, monkeypatch):
    folder, rows = done
    columns, printed = [Column("acc", "accuracy", 2, 100)], {"accuracy": 12.34}
    table = Table(
        name="small",
        title="A small table",
        columns=columns,
        rows=[rows[0], dataclasses.replace(rows[1], paper=printed, versus="ce")],
        notes=["A note."],
        out=str(folder / "out"),
        runs=str(folder / "runs"),
    )
    monkeypatch.setattr(row_training, "train", None)  # every row has its record
    grid = reproduce(table)
    metrics = {key: record["metrics"] for key, record in read_rows(rows, folder / "out").items()}
    expected = [
        (f"{100 * metrics[key]['accuracy']:.2f}", paper) for key, paper in (("ce", ""), ("rsm", "12.34"))
    ]
    ((_, lines),) = grid.blocks
    assert [(line[1].text, line[2].text) for line in lines] == expected
    assert (grid.title, grid.columns, grid.notes[0]) == ("A small table", ["", "acc", "paper"], "A note.")
    ((_, lines),) = reproduce(table, rows=["rsm"]).blocks
    assert [line[0].text for line in lines] == ["R_sm"]
    with pytest.raises(TypeError, match="not callable"):  # the second seed would be trained
        reproduce(table, seeds=2)
    assert reproduce(table, seeds=2, train=False).blocks == grid.blocks


def test_rows_are_chosen_by_name_in_the_order_asked_for(row):
    rows = [row(f"set-{name}") for name in ("ce", "cosface-s10", "cosface-s64", "rsm")]
    names = lambda *asked: [r.key for r in select(rows, asked, "set-")]  # noqa: E731
    assert names() == [r.key for r in rows]
    assert names("rsm", "cosface-*", "cosface-s64") == ["set-rsm", "set-cosface-s10", "set-cosface-s64"]
    with pytest.raises(ValueError, match=r"no row 'cosfase-s64'. Did you mean cosface-s64"):
        names("cosfase-s64")


def test_seeds_are_rows_of_one_label(row):
    rows = seeded([row("a")], 3)
    assert [r.key for r in rows] == ["a", "a-seed1", "a-seed2"]
    assert [r.config.seed for r in rows] == [0, 1, 2]
    assert {r.label for r in rows} == {"row a"}


SECOND = {"objective": "CE", "learns": "prototypes", "fresh_prototypes": True}


@pytest.fixture
def staged(tmp_path, row):
    """A second stage and the first one, in the wrong order; and where they go."""
    rows = [row("b", start=str(tmp_path / "runs" / "a"), **SECOND), row("a", objective="CE")]
    return rows, tmp_path / "out", tmp_path / "runs"


def test_later_stages_start_from_the_first_one_of_their_seed(staged):
    rows, _, runs = staged
    starts = {r.key: r.config.start for r in seeded(rows, 2)}
    assert starts == {"b": f"{runs}/a", "b-seed1": f"{runs}/a-seed1", "a": None, "a-seed1": None}


@pytest.mark.parametrize("jobs", [1, 2])
def test_first_stages_are_trained_before_those_that_start_from_them(staged, jobs):
    rows, out, runs = staged
    run_rows(rows, out, runs=runs, jobs=jobs)
    assert read_rows(rows, out).keys() == {"a", "b"}


def test_a_first_stage_whose_run_is_gone_is_trained_again_where_it_is_needed(staged, monkeypatch):
    rows, out, runs = staged
    run_rows(rows[1:], out, runs=runs)
    shutil.rmtree(runs)
    run_rows(rows[1:], out, runs=runs)
    assert not runs.exists()
    run_rows(rows, out, runs=runs)
    assert read_rows(rows, out).keys() == {"a", "b"}


def test_what_starts_from_a_diverged_run_has_diverged_too(tmp_path, row):
    out, runs = tmp_path / "out", tmp_path / "runs"
    wild = row("wild", objective="CE", lr=1e30, epochs=3)
    run_rows([wild, row("next", start=str(runs / "wild"), **SECOND)], out, runs=runs)
    first, second = (json.loads((out / f"{key}.json").read_text()) for key in ("wild", "next"))
    assert second["diverged"] == first["diverged"]


def test_rows_on_imbalanced_classes_are_not_told_so(tmp_path, row):
    imbalanced = row("imbalanced", objective="CE", imbalance="long_tailed:4", epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_rows([imbalanced], tmp_path / "out", runs=tmp_path / "runs")
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        seeded([row("a")], 0)


@pytest.mark.parametrize("key", ["", "../a", "a/b", ".hidden", "a b"])
def test_a_key_stays_in_its_folder(key, row):
    with pytest.raises(ValueError, match="A key may contain letters"):
        row(key)
