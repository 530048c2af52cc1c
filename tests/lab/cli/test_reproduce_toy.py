"""`tammes reproduce toy` through its entry point, with few epochs of SGD and descent to the end."""

import json
import re

import jaxtyping
import pytest
from PIL import Image

from tammes.lab.cli import main


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Without shape checks, which would double the time of the descents; these have their own tests."""
    out, before = tmp_path_factory.mktemp("toy"), jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        assert main(["reproduce", "toy", "--epochs", "20", "--out", str(out)]) == 0
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
    return out


@pytest.fixture(scope="module")
def rows(written):
    return json.loads((written / "toy.json").read_text())["rows"]


def found(rows, k, d, loss, method):
    of_size = [row for row in rows if (row["k"], row["d"], row["loss"]) == (k, d, loss)]
    (row,) = (row for row in of_size if row["method"].startswith(method))
    return row["class_margin"]


def test_growing_scale_reaches_the_best_known_angles(rows):
    best = {(8, 3): 74.858492, (7, 2): 360 / 7, (7, 3): 77.869542, (13, 3): 57.136703}
    for (k, d), angle in best.items():
        reached = found(rows, k, d, "LM-Softmax (lse)", "descent, growing s")
        assert angle - 1e-3 < reached < angle + 1e-5


def test_three_losses_share_one_optimum_that_depends_on_s_alone(rows):
    for loss in ("NormFace", "CosFace", "LM-Softmax (mean)"):
        assert found(rows, 8, 3, loss, "descent") == pytest.approx(74.47, abs=0.01)  # erratum 12, s = 30


def test_the_printed_lm_softmax_falls_short_where_its_lse_does_not(rows):
    assert found(rows, 7, 2, "LM-Softmax (mean)", "descent") < 1.0  # classes coincide; erratum 2
    assert found(rows, 13, 3, "LM-Softmax (mean)", "descent") < 40


def test_the_papers_numbers_stand_beside_ours(rows):
    printed = {r["loss"]: r["printed"] for r in rows if r["method"].startswith("SGD")}
    assert printed == {
        "NormFace": 68.50,
        "CosFace": 71.86,
        "ArcFace": 67.74,
        "LM-Softmax (mean)": 74.46,
        "LM-Softmax (lse)": None,
    }


def test_the_record_says_how_it_was_made(written):
    record = json.loads((written / "toy.json").read_text())
    assert record["config"]["epochs"] == 20
    assert {"versions", "machine", "date", "seconds"} <= record.keys()


def test_the_spheres_are_a_picture_and_a_page_that_needs_no_network(written):
    with Image.open(written / "toy.png") as picture:
        assert picture.width > picture.height > 200
    page = (written / "toy.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?(https?:)?//", page)


def test_a_finished_loss_is_not_trained_again_and_its_curve_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tammes.lab.recipes.toy.ANNEALING", 5)
    words = ["reproduce", "toy", "--epochs", "12", "--losses", "NormFace", "--out", str(tmp_path)]
    assert main(words) == 0
    first = capsys.readouterr().out
    record = json.loads((tmp_path / "toy" / "normface-12-seed0.json").read_text())
    assert len(record["curve_deg"]) == 2
    assert not (tmp_path / "toy.json").exists()
    monkeypatch.setattr("tammes.lab.recipes.toy.sgd", None)
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == first.strip()


def test_no_epochs_is_refused(tmp_path, capsys):
    assert main(["reproduce", "toy", "--epochs", "0", "--out", str(tmp_path)]) == 1
    assert "epochs must be at least 1, got 0" in capsys.readouterr().err
