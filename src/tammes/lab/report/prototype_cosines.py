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
    cosines_of = _cosines(unit_rows(model.prototypes[shown]))
    caption = "" if k <= IN_MATRIX else f"The {len(shown)} classes with the closest neighbors, side by side."
    cosines = matrix("cosines of prototypes", [model.classes[j] for j in shown], cosines_of)
    charts.append(figure(cosines, caption, kind="square"))
    several = "" if model.prototypes.ndim == 2 else ", the closest ones of the two classes"
    limit = (
        ""
        if k <= model.dimensions + 1
        else f", which {k:,} classes in {model.dimensions:,} dimensions cannot be"
    )
    text = (
        f"Each cell is the cosine of two prototypes{several}. Two classes with a red cell point the same way "
        f"and are easily confused. If all were spread evenly{limit}, every pair would be at −1/(k−1) = "
        f"−{1 / (k - 1):.4f}."
    )
    return [Section("Prototypes", text, render("charts.html", charts=charts))]


def _cosines(units: np.ndarray) -> np.ndarray:
    """Cosines of all pairs of classes; with several prototypes per class, those of the closest pair."""
    if units.ndim == 2:
        return units @ units.T
    k, centers, d = units.shape
    rows = units.reshape(-1, d)
    return (rows @ rows.T).reshape(k, centers, k, centers).max((1, 3))


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
