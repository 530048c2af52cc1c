"""`tammes theory`: what it prints, and what it refuses."""

import json

import numpy as np
import pytest

from tammes.lab.cli import main


def test_the_command_prints_where_a_loss_ends(capsys):
    assert main(["theory", "NormFace(s=5)", "--classes", "4", "--dim", "3"]) == 0
    out = capsys.readouterr().out
    assert "109.4712 deg, at most 109.4712" in out
    assert "merged         none" in out


def test_merged_classes_are_named_and_numbers_come_as_json(capsys):
    words = ["theory", "CE", "--classes", "6", "--dim", "6", "--weight-decay", "0.02", "--json"]
    assert main([*words, "--counts", *["1000"] * 3, *["1"] * 3]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["merged"] == [[3, 4, 5]]
    assert len(found["prototypes"]) == len(found["features"]) == 6
    assert found["gradient"] < 1e-3


@pytest.mark.parametrize("dim", ["2", "3", "4"])
def test_the_optimum_is_drawn_in_any_dimension(dim, tmp_path, capsys):
    picture = tmp_path / "optimum.png"
    assert main(["theory", "LMSoftmax(s=10)", "--classes", "5", "--dim", dim, "--plot", str(picture)]) == 0
    assert picture.stat().st_size > 10_000


def test_the_matrices_hold_the_angles(tmp_path, monkeypatch):
    """The simplex of four classes: 109.47 degrees between prototypes, features on them."""
    from tammes.geometry import simplex
    from tammes.lab.report import optimum_figure

    figures = []
    monkeypatch.setattr(optimum_figure, "save_figure", lambda figure, path, dpi: figures.append(figure))
    units = simplex(4, 5).numpy()
    optimum_figure.draw_optimum("title", units, units, np.arange(4), tmp_path / "a.png")
    between, own = (axes.images[0].get_array().filled(np.nan) for axes in figures[0].axes[:2])
    apart = ~np.eye(4, dtype=bool)
    assert between[apart] == pytest.approx(np.full(12, 109.4712), abs=1e-3)
    assert own.diagonal() == pytest.approx(np.zeros(4), abs=1e-5)


def test_merged_classes_share_a_label_on_the_circle():
    from tammes.lab.report.optimum_figure import _names_at

    places = _names_at(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1e-4]]))
    assert [names for _, names in places] == ["0, 2", "1"]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (
            ["--classes", "3", "--dim", "2", "--counts", "1", "2"],
            "--counts needs 3 numbers, one per class, got 2",
        ),
        (["--classes", "3", "--dim", "2"], "Pass weight_decay"),
        (["--classes", "3", "--dim", "2", "--plot", "a.html"], "requires D = 3, got 2"),
    ],
)
def test_bad_input_gets_one_line(words, match, capsys):
    assert main(["theory", "CE", *words]) == 1
    assert match in capsys.readouterr().err
