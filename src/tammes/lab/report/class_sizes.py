"""Class imbalance: training images per class, and their effect on accuracy."""

import numpy as np

from tammes.lab.report.charts import counts_and_accuracy
from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section, figure, html_table
from tammes.lab.report.tables import Cell, Grid
from tammes.lab.report.templating import render

MAX_BARS = 100

GROUPS = {"many": ("frequent", "over 100"), "medium": ("medium", "20 to 100"), "few": ("rare", "under 20")}
"""Key of a group in the numbers, its name, and how many training images its classes have."""


def class_sizes(model: ModelResults) -> list[Section]:
    """Class sizes with accuracies, accuracy by group and calibration; only if classes are imbalanced."""
    if "class_count" not in model.arrays:
        return []
    counts = model.arrays["class_count"]
    most, least = int(counts.max()), int(counts.min())
    text = (
        f"The largest class has {most:,} training images, the smallest {least:,}: {most / least:.0f} to 1. "
        "If accuracy falls with the bars, rare classes suffer; balanced sampling, "
        "LDAM with deferred re-weighting, or a second stage on balanced samples counteract that.\n\n"
        f"The expected calibration error is {100 * model.numbers['ece']:.2f} %: on average, the predicted "
        "probability of an answer is that far from how often such answers are correct."
    )
    caption = "Bars: training images, on a logarithmic scale. Line: accuracy on the test images."
    if len(counts) > MAX_BARS:
        caption += " Classes of similar size are grouped, and their means shown."
    chart = counts_and_accuracy("accuracy and training images by class", *_bars(model))
    charts = [figure(chart, caption), html_table(_by_group(model))]
    return [Section("Class sizes", text, render("charts.html", charts=charts))]


def _bars(model: ModelResults) -> tuple[list[str], list[float], list[float]]:
    """Names, counts and accuracies, largest class first; with many classes, means of groups of neighbors."""
    counts, accuracy = model.arrays["class_count"], model.arrays["class_accuracy"]
    order = np.argsort(-counts, kind="stable")
    groups = np.array_split(order, min(len(order), MAX_BARS))
    names = [_range(model.classes[int(group[0])], model.classes[int(group[-1])]) for group in groups]
    known = [accuracy[group][np.isfinite(accuracy[group])] for group in groups]
    means = [float(some.mean()) if len(some) else float("nan") for some in known]
    return names, [float(counts[group].mean()) for group in groups], means


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _by_group(model: ModelResults) -> Grid:
    counts = model.arrays["class_count"]
    sizes = {
        "many": int((counts > 100).sum()),
        "medium": int(((counts <= 100) & (counts >= 20)).sum()),
        "few": int((counts < 20).sum()),
    }
    lines = [
        [Cell(name), Cell(images), Cell(f"{sizes[key]:,}"), Cell(f"{100 * model.numbers[key]:.2f}")]
        for key, (name, images) in GROUPS.items()
        if key in model.numbers
    ]
    mean = Cell(f"{100 * model.numbers['mean_class_accuracy']:.2f}")
    lines.append([Cell("all"), Cell(""), Cell(f"{len(counts):,}"), mean])
    return Grid("", ["", "training images", "classes", "mean acc %"], [("", lines)], words=2)
