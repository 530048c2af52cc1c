"""Confusions between classes."""

import itertools
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from tammes.lab.report.charts import LABELED, confusion_matrix
from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section, figure
from tammes.lab.report.tables import Cell, Grid
from tammes.lab.report.templating import render
from tammes.metrics._example_samples import confused_pairs, example_samples

IN_MATRIX = LABELED
"""Maximum number of classes in a matrix, whose names must fit; of more, those of the most frequent pairs."""

LISTED = 20
"""Maximum number of pairs of classes in a list."""


def confusions(model: ModelResults) -> list[Section]:
    """A confusion matrix and the most frequent confusions, each with its photos."""
    if "prediction" not in model.arrays:
        return []
    wrong = int((~model.correct).sum())
    if not wrong:
        return [Section("Confused classes", "None: every sample is classified correctly.")]
    pairs = confused_pairs(model.arrays["label"], model.arrays["prediction"])
    examples = example_samples(model.arrays).confused if model.photos else {}
    sizes = np.bincount(model.arrays["label"], minlength=len(model.classes)).tolist()
    listed = [
        {
            "key": f"{a}-{b}",
            "truth": model.classes[a],
            "prediction": model.classes[b],
            "times": times,
            "share": 100 * times / sizes[a],
            "photos": model.photo_cards(examples.get((a, b), [])),
        }
        for (a, b), times in pairs
    ]
    # Pairs beyond the first are hidden until a click in the matrix opens them.
    listed = [
        pair | {"extra": place >= LISTED}
        for place, pair in enumerate(listed)
        if place < LISTED or pair["photos"]
    ]
    text = f"{wrong:,} of {model.samples:,} samples are misclassified. {_advice(model)}"
    shown = _most_confused([pair for pair, _ in pairs], len(model.classes))
    matrix = _matrix(model, shown, sizes, {str(pair["key"]) for pair in listed})
    more = f"The {LISTED} most frequent of {len(pairs):,} pairs." if len(pairs) > LISTED else ""
    body = render("confusions.html", matrix=matrix, pairs=listed, more=more)
    return [Section("Confused classes", text, body)]


def _advice(model: ModelResults) -> str:
    said = ["Rows are true classes, columns predictions.", "Percentages are shares of the true class."]
    if len(model.classes) > IN_MATRIX:
        said.insert(0, f"The matrix has the {IN_MATRIX} most often confused classes.")
    if model.photos:
        said.append("Click a cell or a line to see the photos.")
    return " ".join(said)


def _most_confused(pairs: Sequence[tuple[int, int]], k: int) -> list[int]:
    """The classes of the most frequent pairs, in the order of the data set; all if they fit."""
    if k <= IN_MATRIX:
        return list(range(k))
    found = list(dict.fromkeys(itertools.chain.from_iterable(pairs)))
    return sorted(found[:IN_MATRIX])


def _matrix(model: ModelResults, shown: list[int], sizes: list[int], listed: set[str]) -> Markup:
    k = len(shown)
    places = np.full(len(model.classes), -1)
    places[shown] = np.arange(k)
    rows, columns = places[model.arrays["label"]], places[model.arrays["prediction"]]
    inside = (rows >= 0) & (columns >= 0)
    counts = np.bincount(rows[inside] * k + columns[inside], minlength=k * k).reshape(k, k)
    classes = {j: model.classes[j] for j in shown}
    drawn = confusion_matrix("confusion matrix", classes, counts, [sizes[j] for j in shown], listed)
    return figure(drawn, kind="square")


def confusion_grid(model: ModelResults) -> Grid | None:
    """True and predicted class of the mistakes, most frequent first; None if there are no mistakes."""
    if "prediction" not in model.arrays or model.correct.all():
        return None
    label = model.arrays["label"]
    pairs = confused_pairs(label, model.arrays["prediction"])
    sizes = np.bincount(label, minlength=len(model.classes)).tolist()
    rows = [
        [model.classes[a], model.classes[b], f"{times:,}", f"{100 * times / sizes[a]:.1f}"]
        for (a, b), times in pairs[:LISTED]
    ]
    more = f" Listed: the {LISTED} most frequent of {len(pairs):,} pairs." if len(pairs) > LISTED else ""
    note = f"{int((~model.correct).sum()):,} of {model.samples:,} samples are misclassified.{more}"
    columns = ["class", "taken for", "times", "% of the class"]
    return Grid("", columns, [("", [[Cell(text) for text in row] for row in rows])], words=2, notes=[note])
