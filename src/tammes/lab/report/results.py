"""The numbers of a page: tiles for one model, a table for several."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from tammes.lab.report.accuracy_comparison import Difference, accuracy_interval, difference
from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section, html_table
from tammes.lab.report.settings import differing_settings, setting
from tammes.lab.report.tables import Cell, Grid
from tammes.lab.report.templating import number, render


class ResultColumn(NamedTuple):
    """A number of a model and how it is shown; `maximum` is the key of the number it cannot exceed."""

    title: str
    key: str
    unit: str = ""
    digits: int = 2
    factor: float = 1.0
    maximum: str = ""

    def text(self, model: ModelResults, key: str = "") -> str:
        """The value, or that of another `key` in the same unit; empty where the model has none."""
        value = model.numbers.get(key or self.key)
        return "" if value is None else number(self.factor * value, self.digits)


MEASURES = (
    ResultColumn("mAP", "mAP", " %", factor=100.0),
    ResultColumn("rank-1", "rank1", " %", factor=100.0),
    ResultColumn("frequent classes", "many", " %", factor=100.0),
    ResultColumn("medium classes", "medium", " %", factor=100.0),
    ResultColumn("rare classes", "few", " %", factor=100.0),
    ResultColumn("mean class accuracy", "mean_class_accuracy", " %", factor=100.0),
    ResultColumn("calibration error", "ece", " %", factor=100.0),
    ResultColumn("class margin", "class_margin_deg", "°", maximum="class_margin_maximum_deg"),
    ResultColumn("sample margin", "sample_margin", digits=4, maximum="sample_margin_ceiling"),
    ResultColumn("smallest margin", "gamma_min", digits=4),
)
"""Shown after the accuracy, if any model has them. Groups of classes are by number of training images."""

MAX_SETTINGS = 3
"""Maximum number of columns for settings that differ; the section on settings lists all of them."""


def results(models: Sequence[ModelResults]) -> Section:
    """The numbers of every model."""
    text = "Measured on samples not used for training, unless noted." if all(m.epochs for m in models) else ""
    return Section("Results", text, _tiles(models[0]) if len(models) == 1 else html_table(_grid(models)))


def _tiles(model: ModelResults) -> Markup:
    """One tile per number, with its interval or its maximum below."""
    tiles = []
    if "accuracy" in model.numbers:
        accuracy, interval, _ = _accuracy_cells(model, [model])
        tiles.append(("accuracy", f"{accuracy} %", f"95 % interval: {interval}" if interval else ""))
    for measure in MEASURES:
        if measure.key in model.numbers:
            maximum = measure.text(model, measure.maximum) if measure.maximum else ""
            below = f"of at most {maximum}{measure.unit}" if maximum else ""
            tiles.append((measure.title, f"{measure.text(model)}{measure.unit}", below))
    return render("tiles.html", tiles=tiles)


def _grid(models: Sequence[ModelResults]) -> Grid:
    """One row per model, one block per data set."""
    measures = [measure for measure in MEASURES if any(measure.key in model.numbers for model in models)]
    settings = differing_settings([model.record for model in models])[:MAX_SETTINGS]
    blocks: dict[str, list[ModelResults]] = {}
    for model in models:
        blocks.setdefault(model.data, []).append(model)
    accuracy = any("accuracy" in model.numbers for model in models)
    heads = ["", *settings, *(["acc %", "95 % interval", "behind the best"] if accuracy else [])]
    columns = [(measure, len(_maxima(measure, models)) > 1) for measure in measures]
    for measure, apart in columns:
        shared = "" if apart else "".join(f", max {maximum}" for maximum in _maxima(measure, models))
        heads += [f"{measure.title}{measure.unit}{shared}", *(["max"] if apart else [])]
    rows = [
        (
            data if len(blocks) > 1 else "",
            [_row(model, group, settings, columns, accuracy=accuracy) for model in group],
        )
        for data, group in blocks.items()
    ]
    return Grid("", heads, rows, words=1 + len(settings), notes=_notes(len(blocks), accuracy))


def _maxima(measure: ResultColumn, models: Sequence[ModelResults]) -> set[str]:
    """The maximum of the measure for each model that has it; empty for a measure without a maximum."""
    texts = {measure.text(model, measure.maximum) for model in models} if measure.maximum else set()
    return texts - {""}


def _notes(data_sets: int, accuracy: bool) -> list[str]:
    notes = ["Models on different data are not comparable."] if data_sets > 1 else []
    if accuracy:
        notes.append(
            "Behind the best: number of test images, and whether the gap is significant (McNemar's exact "
            "test, p < 0.05)."
        )
    return notes


def _row(
    model: ModelResults,
    group: Sequence[ModelResults],
    settings: Sequence[str],
    measures: Sequence[tuple[ResultColumn, bool]],
    *,
    accuracy: bool,
) -> list[Cell]:
    texts = [model.name, *(setting(model.config, name) for name in settings)]
    texts += _accuracy_cells(model, group) if accuracy else []
    for measure, apart in measures:
        texts += [measure.text(model), *([measure.text(model, measure.maximum)] if apart else [])]
    return [Cell(text) for text in texts]


def _accuracy_cells(model: ModelResults, group: Sequence[ModelResults]) -> list[str]:
    """Accuracy, its interval, and the distance to the best of the group."""
    if "accuracy" not in model.numbers:
        return ["", "", ""]
    interval = accuracy_interval(model)
    ends = f"{100 * interval.low:.1f} to {100 * interval.high:.1f}" if interval else ""
    measured = [other for other in group if "accuracy" in other.numbers]
    best = max(measured, key=lambda other: other.numbers["accuracy"])
    behind = "best" if best is model else _behind(difference(best, model))
    return [number(100 * model.numbers["accuracy"], 2), ends, behind]


def _behind(gap: Difference | None) -> str:
    if gap is None:
        return ""
    return f"{gap.images:,} of {gap.samples:,}{'' if gap.significant else ': no difference'}"
