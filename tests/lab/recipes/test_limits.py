"""Optima of the losses: a few cells of each part, and a command that continues where it stopped."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tammes.geometry.simplices import simplex
from tammes.lab.cli import main
from tammes.lab.recipes import limits


@pytest.mark.parametrize("name", limits.LOSSES)
def test_for_few_classes_all_losses_share_the_simplex(name):
    row = limits.loss_row(name, 4, 3)
    assert row["tammes_deg"] == pytest.approx(109.4712, abs=1e-3)
    assert row["class_margin_deg"] == pytest.approx(row["tammes_deg"], abs=0.1)


def test_for_more_classes_losses_end_apart():
    """Erratum 2 at d = 2, k = 7: the mean merges prototypes, the log-sum-exp ends at the regular polygon."""
    mean, lse = limits.loss_row("LM-Softmax (mean)", 7, 2), limits.loss_row("LM-Softmax (lse)", 7, 2)
    assert mean["merged"]
    assert mean["class_margin_deg"] < 1
    assert lse["class_margin_deg"] == pytest.approx(360 / 7, abs=0.01)


def test_rare_classes_move_together_and_r_w_keeps_them_apart():
    balanced, imbalanced, centered = (
        limits.minority_row("NormFace", ratio, r_w) for ratio, r_w in [(1, False), (100, False), (100, True)]
    )
    assert balanced["rare_deg"] == pytest.approx(96.379, abs=0.01)
    assert imbalanced["rare_deg"] < balanced["rare_deg"] - 30
    assert balanced["rare_deg"] - 3 < imbalanced["rare_means_deg"] < balanced["rare_deg"] - 1, "means stay"
    assert centered["rare_deg"] == pytest.approx(balanced["rare_deg"], abs=0.5)


def test_a_softmax_code_is_as_good_as_the_packing():
    row = limits.code_row(7, 3)
    assert row["softmax_gamma"] == pytest.approx(row["packing_gamma"], abs=1e-7)
    assert row["rattlers"] == 0
    assert row["cosines_off"] < limits.ALIKE


@pytest.mark.parametrize("worse", ["pack", "softmax_code"])
def test_the_worse_search_goes_on_from_the_result_of_the_other(worse, monkeypatch):
    """A search that misses the optimum of 9 points in 3 dimensions finds it from the other's."""
    found = getattr(limits, worse)

    def unlucky(k, d, *, start=None, **how):
        good = found(k, d, start=start, **how)
        if start is not None:
            return good
        if worse == "pack":
            return dataclasses.replace(good, angle=good.angle - 0.1)
        return good._replace(gamma=good.gamma - 0.1)

    monkeypatch.setattr(limits, worse, unlucky)
    row = limits.code_row(9, 3)
    assert row["softmax_gamma"] == pytest.approx(row["packing_gamma"], abs=1e-7)
    assert abs(row["packing_alone"] - row["softmax_alone"]) > 0.05


@pytest.mark.parametrize("sizes", [(3,), (3, 2), (4, 2, 2)])
def test_orthogonal_parts_are_counted(sizes):
    weight = torch.block_diag(*(simplex(n, n - 1) for n in sizes))
    assert limits.orthogonal_parts(weight) == list(sizes)


def test_the_command_keeps_what_it_has(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(limits, "RATIOS", (1, 10))
    monkeypatch.setattr(limits, "IMBALANCED", {"NormFace": limits.IMBALANCED["NormFace"]})
    command = ["reproduce", "limits", "--part", "minority", "--out", str(tmp_path)]
    assert main([*command, "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("minority: ") == 4
    assert "merged at" in out
    assert len(json.loads((tmp_path / "limits.json").read_text())["minority"]) == 4
    assert (tmp_path / "minority_collapse.png").stat().st_size > 10_000
    assert main(command) == 0
    assert "minority: " not in capsys.readouterr().out


def test_the_figure_shows_trained_networks_and_no_row_that_has_not_converged(tmp_path, monkeypatch):
    """Color by loss; CE with R_w at a ratio of 100 and more is no optimum."""
    from tammes.lab.report import minority_figure

    figures = []
    monkeypatch.setattr(minority_figure, "save_figure", lambda figure, path: figures.append(figure))
    point = {"loss": "CE", "R_w": True, "merged": []}
    rows = [
        point | {"ratio": 1, "rare_deg": 96.0, "rare_means_deg": 95.0, "gradient": 1e-9},
        point | {"ratio": 100, "rare_deg": 44.0, "rare_means_deg": 40.0, "gradient": 0.02},
    ]
    trained = {"loss": "CE", "R_w": True, "ratio": 100, "class_margin_deg": 71.0, "shape": "long_tailed"}
    minority_figure.draw_minority_collapse(rows, tmp_path / "figure.png", [trained])
    (figure,) = figures
    prototypes, means = figure.axes[1].lines
    assert (list(prototypes.get_xdata()), list(prototypes.get_ydata())) == ([1], [96.0])
    assert (list(means.get_xdata()), list(means.get_ydata())) == ([1], [95.0])
    assert [100, 71.0] in [list(point) for part in figure.axes[1].collections for point in part.get_offsets()]
    assert "trained, long-tailed" in [text.get_text() for text in figure.axes[1].get_legend().get_texts()]


def test_trained_rows_come_with_the_shape_of_their_imbalance():
    found = limits.trained_rows(Path(__file__).parents[3] / "results" / "table2")
    assert {row["shape"] for row in found} >= {"long_tailed"}
    assert all(0 < row["class_margin_deg"] < 100 for row in found)
