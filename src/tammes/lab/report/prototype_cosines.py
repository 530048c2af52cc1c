"""Cosines of all pairs of prototypes."""

import numpy as np

from tammes.lab.report.charts import Series, histogram, matrix
from tammes.lab.report.model_results import ModelResults, unit_rows
from tammes.lab.report.page import Section, figure
from tammes.lab.report.templating import render

IN_MATRIX = 60
"""Maximum number of classes in the matrix; with more classes, those with the closest neighbors."""

COUNTED = 20
"""With more classes than this, a histogram shows all nearest-neighbor angles."""


def prototype_cosines(model: ModelResults) -> list[Section]:
    """A matrix of cosines and, for many classes, a histogram of the angle to the nearest prototype."""
    k = len(model.classes)
    charts = []
    if k > COUNTED and "nearest_angle" in model.arrays:
        charts.append(figure(_angles(model)))
    if model.prototypes is None:
        text = "The prototypes of this run are not stored. To show them, run `tammes inspect` on it."
        return [Section("Prototypes", text, render("charts.html", charts=charts))]
    shown = list(range(k)) if k <= IN_MATRIX else _closest_classes(model)
    rows = unit_rows(model.prototypes[shown])
    caption = "" if k <= IN_MATRIX else f"The {len(shown)} classes with the closest neighbors, side by side."
    cosines = matrix("cosines of prototypes", [model.classes[j] for j in shown], rows @ rows.T)
    charts.append(figure(cosines, caption, kind="square"))
    limit = (
        ""
        if k <= model.dimensions + 1
        else f", which {k:,} classes in {model.dimensions:,} dimensions cannot be"
    )
    text = (
        "Each cell is the cosine of two prototypes. Two classes with a red cell point the same way and are "
        f"easily confused. If all were spread evenly{limit}, every pair would be at −1/(k−1) = "
        f"−{1 / (k - 1):.4f}."
    )
    return [Section("Prototypes", text, render("charts.html", charts=charts))]


def _angles(model: ModelResults):
    maximum = model.numbers["class_margin_maximum_deg"]
    return histogram(
        "angle to the nearest prototype",
        [Series("classes", "var(--c0)", np.degrees(model.arrays["nearest_angle"]).astype(np.float64))],
        label="degrees",
        marks=[(maximum, f"smallest at most {maximum:.2f}°")],
    )


def _closest_classes(model: ModelResults) -> list[int]:
    """The classes with the closest neighbors, each beside its neighbor."""
    found: dict[int, None] = {}
    for j in np.argsort(model.arrays["nearest_angle"], kind="stable").tolist():
        found.setdefault(j)
        found.setdefault(int(model.arrays["nearest_class"][j]))
        if len(found) >= IN_MATRIX:
            break
    return list(found)[:IN_MATRIX]
