"""Accuracy, margins and loss over the epochs of training."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tammes.lab.report.charts import Curve, color, line_chart
from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section, figure
from tammes.lab.report.templating import render


class EpochMeasure(NamedTuple):
    """A number of each epoch; `maximum` is the key of its upper bound."""

    key: str
    title: str
    factor: float = 1.0
    maximum: str = ""


MEASURES = (
    EpochMeasure("accuracy", "accuracy, %", 100.0),
    EpochMeasure("mAP", "mAP, %", 100.0),
    EpochMeasure("class_margin_deg", "class margin, °", maximum="class_margin_maximum_deg"),
    EpochMeasure("sample_margin", "mean sample margin", maximum="sample_margin_ceiling"),
    EpochMeasure("loss", "loss of the last batch"),
)


def training_curves(models: Sequence[ModelResults]) -> list[Section]:
    """One chart per measure with one curve per model, for models that have a history."""
    trained = [(run, model) for run, model in enumerate(models) if model.epochs]
    if not trained:
        return []
    charts = [figure(chart) for measure in MEASURES for chart in _chart(measure, trained)]
    legend = [{"run": run, "color": color(run), "name": model.label} for run, model in trained]
    text = (
        "Measured after each epoch on samples not used for training; the loss is that of the last training "
        "batch. Dashed: values that cannot be exceeded."
    )
    body = render("training_curves.html", legend=legend, charts=charts)
    return [Section("Training curves", text, body, anchor="curves")]


def _chart(measure: EpochMeasure, trained: list[tuple[int, ModelResults]]) -> list:
    shown = [(run, m) for run, m in trained if any(measure.key in epoch for epoch in m.epochs)]
    if not shown:
        return []
    maxima = {round(m.numbers[measure.maximum], 6) for _, m in shown if measure.maximum in m.numbers}
    return [line_chart(measure.title, [_curve(run, m, measure) for run, m in shown], limits=sorted(maxima))]


def _curve(run: int, model: ModelResults, measure: EpochMeasure) -> Curve:
    values = [measure.factor * epoch.get(measure.key, math.nan) for epoch in model.epochs]
    return Curve(model.name, run, [epoch["epoch"] + 1 for epoch in model.epochs], values)
