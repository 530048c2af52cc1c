"""Skewed classes on a page: how many training images each class has, and how that shows in its accuracy."""

import numpy as np

from tammes.report.charts import counts_and_accuracy
from tammes.report.page import Section, figure, wide
from tammes.report.subject import Subject
from tammes.report.tables import Cell, Grid

DRAWN = 100
"""So many bars are drawn at the most."""

GROUPS = {"many": "over 100", "medium": "20 to 100", "few": "under 20"}


def class_sizes(s: Subject) -> list[Section]:
    """Class counts with accuracies over them, accuracy by group, calibration; where counts are skewed."""
    if "class_count" not in s.arrays:
        return []
    counts = s.arrays["class_count"]
    chart = counts_and_accuracy("accuracy and training images by class", *_bars(s))
    most, least = int(counts.max()), int(counts.min())
    words = (
        f"The largest class has {most:,} training images, the smallest {least:,}: {most / least:.0f} to 1. "
        "Where accuracy falls with the bars, rare classes are given away for frequent ones; R_w, LDAM, "
        "balanced sampling or a second stage on balanced samples work against that.\n\n"
        f"The expected calibration error is {100 * s.numbers['ece']:.2f} %: on average the probability that "
        "it gives to its answer is that far from how often such answers are right."
    )
    caption = "Bars: training images, on a logarithmic scale. Line: accuracy on the test images."
    if len(counts) > DRAWN:
        caption += " Classes of like size stand together, with their means."
    return [Section("Class sizes", words, figure(chart, caption, kind="square") + wide(_by_group(s)))]


def _bars(s: Subject) -> tuple[list[str], list[float], list[float]]:
    """Names, counts and accuracies of the classes, the largest first; of many, the means of neighbours."""
    counts, accuracy = s.arrays["class_count"], s.arrays["class_accuracy"]
    order = np.argsort(-counts, kind="stable")
    groups = np.array_split(order, min(len(order), DRAWN))
    names = [_range(s.classes[int(group[0])], s.classes[int(group[-1])]) for group in groups]
    known = [accuracy[group][np.isfinite(accuracy[group])] for group in groups]
    means = [float(some.mean()) if len(some) else float("nan") for some in known]
    return names, [float(counts[group].mean()) for group in groups], means


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _by_group(s: Subject) -> Grid:
    counts = s.arrays["class_count"]
    sizes = {
        "many": int((counts > 100).sum()),
        "medium": int(((counts <= 100) & (counts >= 20)).sum()),
        "few": int((counts < 20).sum()),
    }
    lines = [
        [Cell(name), Cell(words), Cell(f"{sizes[name]:,}"), Cell(f"{100 * s.numbers[name]:.2f}")]
        for name, words in GROUPS.items()
        if name in s.numbers
    ]
    mean = Cell(f"{100 * s.numbers['mean_class_accuracy']:.2f}")
    lines.append([Cell("all"), Cell(""), Cell(f"{len(counts):,}"), mean])
    return Grid("", ["", "training images", "classes", "mean acc %"], [("", lines)], words=2)
