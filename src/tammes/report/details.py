"""Sections on one model: its samples, its classes, its prototypes."""

from collections import Counter
from collections.abc import Sequence
from html import escape

import numpy as np

from tammes.report.charts import Series, histogram, matrix
from tammes.report.page import Section, figure, wide
from tammes.report.subject import Subject, units
from tammes.report.tables import Cell, Grid

LISTED = 20
"""So many classes, or pairs of them, are listed at the most."""

IN_MATRIX = 60
"""So many classes have a place in the matrix of cosines; with more, those whose rivals are nearest."""


def notes(s: Subject) -> list[Section]:
    """What has to be known before looking further."""
    lines = [*s.notes]
    empty = int(np.isnan(s.arrays.get("class_accuracy", np.zeros(1))).sum())
    if empty:
        lines.append(f"{empty:,} of {len(s.classes):,} classes have no measured samples, and no numbers.")
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return [Section("Notes", "", f"<ul>{items}</ul>")] if lines else []


def margins(s: Subject) -> list[Section]:
    """Histograms of sample margins and of similarities (the paper's Figs. 4 to 6)."""
    if "sample_margin" not in s.arrays:
        return []
    margin = s.arrays["sample_margin"]
    right = s.arrays["label"] == s.arrays["prediction"]
    groups = [("right", "var(--good)", margin[right]), ("wrong", "var(--bad)", margin[~right])]
    mean, ceiling = s.numbers["sample_margin"], s.numbers["sample_margin_ceiling"]
    marks = [(mean, f"mean {mean:.3f}"), (ceiling, f"mean at most {ceiling:.3f}")]
    charts = [
        figure(
            histogram("sample margins", _series(groups), label="own cosine − nearest other", marks=marks),
            "Green: given to its own class. Red: given to another.",
        )
    ]
    if "similarity" in s.arrays:
        own = s.arrays["similarity"]
        groups = [("nearest other", "var(--rival)", own - margin), ("own prototype", "var(--c0)", own)]
        chart = histogram("similarities", _series(groups), label="cosine of sample and prototype")
        charts.append(figure(chart, "Blue: with the own prototype. Orange: with the nearest other one."))
    switch = '<div class="controls"><label><input type="checkbox" data-log> logarithmic counts</label></div>'
    words = (
        "First, how far each sample is from being taken for another class: 0 is the border. Then, how "
        "similar samples are to their own prototype, and to the nearest other one: the less the two "
        "overlap, the better. Logarithmic counts show the few that lie apart."
    )
    return [Section("Samples", words, f'{switch}<div class="charts">{"".join(charts)}</div>')]


def _series(groups: list[tuple[str, str, np.ndarray]]) -> list[Series]:
    return [Series(name, shade, np.asarray(v, np.float64)) for name, shade, v in groups if len(v)]


def confusion_grid(s: Subject) -> Grid | None:
    """Which classes are taken for which, the most frequent first; None where no sample is known to be."""
    label, prediction = (s.arrays.get(name, np.zeros(0, np.int64)) for name in ("label", "prediction"))
    wrong = label != prediction
    if not wrong.any():
        return None
    pairs = Counter(zip(label[wrong].tolist(), prediction[wrong].tolist(), strict=True))
    sizes = np.bincount(label, minlength=len(s.classes))
    rows = [
        [s.classes[a], s.classes[b], f"{times:,}", f"{100 * times / sizes[a]:.1f}"]
        for (a, b), times in pairs.most_common(LISTED)
    ]
    more = f" The {LISTED} most frequent of {len(pairs):,} pairs." if len(pairs) > LISTED else ""
    note = f"{int(wrong.sum()):,} of {s.samples:,} samples are given to another class.{more}"
    return _grid(["class", "taken for", "times", "% of the class"], rows, notes=[note])


def confusions(s: Subject) -> list[Section]:
    """Which classes it cannot tell apart."""
    if "prediction" not in s.arrays:
        return []
    grid = confusion_grid(s)
    if grid is None:
        return [Section("Classes it confuses", "None: every sample is given to its own class.", "")]
    return [Section("Classes it confuses", "", wide(grid))]


def worst_classes(s: Subject) -> list[Section]:
    """The classes it does worst on, each with its nearest rival."""
    if "class_accuracy" not in s.arrays:
        return []
    arrays, label = s.arrays, s.arrays["label"]
    sizes = np.bincount(label, minlength=len(s.classes))
    order = np.lexsort((arrays["class_gamma"], arrays["class_accuracy"]))
    order = [j for j in order.tolist() if sizes[j]]
    rows = [
        [
            s.classes[j],
            s.classes[int(arrays["nearest_class"][j])],
            f"{np.degrees(arrays['nearest_angle'][j]):.2f}",
            f"{sizes[j]:,}",
            f"{100 * arrays['class_accuracy'][j]:.2f}",
            f"{arrays['class_sample_margin'][j]:.4f}".replace("-", "−"),
            f"{arrays['class_gamma'][j]:.4f}".replace("-", "−"),
        ]
        for j in order[:LISTED]
    ]
    heads = ["class", "nearest class", "angle °", "samples", "acc %", "mean margin", "smallest"]
    more = f"The {LISTED} lowest of {len(order):,}, by" if len(order) > LISTED else "By"
    words = (
        f"{more} accuracy, then by the smallest sample margin. The nearest class is the one whose prototype "
        "is at the smallest angle. A click on a heading sorts."
    )
    return [Section("Worst classes", words, wide(_grid(heads, rows)))]


def _grid(heads: list[str], rows: list[list[str]], notes: Sequence[str] = ()) -> Grid:
    return Grid("", heads, [("", [[Cell(text) for text in row] for row in rows])], words=2, notes=notes)


def prototypes(s: Subject) -> list[Section]:
    """Cosines of all pairs of prototypes; of many classes those that are closest, and all angles counted."""
    k = len(s.classes)
    charts = []
    if k > LISTED and "nearest_angle" in s.arrays:
        angles = np.degrees(s.arrays["nearest_angle"]).astype(np.float64)
        most = s.numbers["class_margin_maximum_deg"]
        chart = histogram(
            "angle of each prototype to its nearest other",
            [Series("classes", "var(--c0)", angles)],
            label="degrees",
            marks=[(most, f"smallest at most {most:.2f}°")],
        )
        charts.append(figure(chart))
    if s.prototypes is not None:
        shown = list(range(k)) if k <= IN_MATRIX else _closest_classes(s)
        rows = units(s.prototypes[shown])
        names = [s.classes[j] for j in shown]
        caption = "" if k <= IN_MATRIX else f"The {len(shown)} classes with the nearest rivals, side by side."
        charts.append(figure(matrix("cosines of prototypes", names, rows @ rows.T), caption, kind="square"))
    cannot = "" if k <= s.dimensions + 1 else ", which so many classes in so few dimensions cannot"
    words = (
        "Each cell is the cosine of two prototypes: red where they point the same way, white at right "
        "angles, blue where they point apart. Spread evenly, all pairs would have "
        f"−1/(k−1) = −{1 / (k - 1):.4f}{cannot}."
    )
    if s.prototypes is None:
        words = "The prototypes of this run are not stored. `tammes inspect` of the run shows them."
    return [Section("Prototypes", words, f'<div class="charts">{"".join(charts)}</div>')]


def _closest_classes(s: Subject) -> list[int]:
    """The classes with the nearest rivals, each beside its rival."""
    found: dict[int, None] = {}
    for j in np.argsort(s.arrays["nearest_angle"], kind="stable").tolist():
        found.setdefault(j)
        found.setdefault(int(s.arrays["nearest_class"][j]))
        if len(found) >= IN_MATRIX:
            break
    return list(found)[:IN_MATRIX]
