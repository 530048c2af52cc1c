"""The page of losses: drawn from the catalogue, complete, with a counterpart of each loss of the peers."""

import inspect
from pathlib import Path

import pytest
import torch

from tammes.lab.cli import main
from tammes.lab.report.loss_page import ABOUT, MARGIN_LOSSES, loss_table, target_logit
from tammes.losses import CATALOGUE, parse

PAGE = Path(__file__).parents[3] / "docs" / "losses.md"


def test_every_catalogue_entry_has_a_row_and_every_row_an_entry():
    assert set(ABOUT) == {kind.text_name for kind in CATALOGUE}
    rows = loss_table().splitlines()[2:]
    assert [row.split("|")[1].strip(" `") for row in rows] == [kind.text_name for kind in CATALOGUE]
    assert {row.count("|") for row in rows} == {7}


def test_the_page_is_up_to_date(tmp_path):
    copy = tmp_path / "losses.md"
    copy.write_text(PAGE.read_text())
    figure = tmp_path / "figure.png"
    assert main(["reproduce", "losses", "--fill", str(copy), "--figure", str(figure)]) == 0
    assert copy.read_text() == PAGE.read_text()
    assert figure.stat().st_size > 10_000


def test_the_page_names_a_counterpart_of_each_class_based_loss_of_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    class_based = {
        name
        for name, kind in vars(losses).items()
        if inspect.isclass(kind) and "num_classes" in inspect.signature(kind.__init__).parameters
    }
    class_based |= {"LargeMarginSoftmaxLoss"}
    assert "ArcFaceLoss" in class_based
    named = {
        line.split("`")[1] for line in PAGE.read_text().splitlines() if "| pytorch-metric-learning" in line
    }
    assert class_based <= named
    assert all(hasattr(losses, name) for name in named)


def test_the_logits_of_the_figure_are_those_of_the_formulas():
    cosine = torch.linspace(-0.5, 0.9, 15, dtype=torch.float64)
    theta = cosine.acos()
    expected = {
        "CosFace, m = 0.35": cosine - 0.35,
        "ArcFace, m = 0.5": torch.cos(theta + 0.5),
        "AdaFace, low quality": torch.cos(theta + 0.4),
        "AdaFace, high quality": torch.cos((theta - 0.4).clamp(min=0)) - 0.8,
        "MagFace, |z| = 110": torch.cos(theta + 0.8),
        "Circle, m = 0.25": (1.25 - cosine) * (cosine - 0.75),
    }
    for label, logit in expected.items():
        text, norm = MARGIN_LOSSES[label]
        inside = theta + 0.8 < torch.pi
        found = target_logit(parse(text), cosine, norm)
        torch.testing.assert_close(
            found[inside], logit[inside], msg=lambda words, name=label: f"{name}: {words}"
        )
