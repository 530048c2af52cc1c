"""The classes with the lowest accuracy."""

import math

import numpy as np

from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section, html_table
from tammes.lab.report.tables import Cell, Grid
from tammes.lab.report.templating import number

LISTED = 20
"""Maximum number of classes in the table."""

KEPT = ("class_gamma", "class_accuracy", "class_sample_margin", "nearest_class", "nearest_angle")
HEADINGS = ("class", "nearest class", "angle °", "samples", "acc %", "mean margin", "smallest")


def worst_first(model: ModelResults) -> list[int]:
    """The classes that have samples by accuracy, then by smallest sample margin."""
    sizes = np.bincount(model.arrays["label"], minlength=len(model.classes))
    order = np.lexsort((model.arrays["class_gamma"], model.arrays["class_accuracy"]))
    return [j for j in order.tolist() if sizes[j]]


def worst_classes(model: ModelResults) -> list[Section]:
    """The classes with the lowest accuracy, each with the class whose prototype is nearest."""
    if "class_accuracy" not in model.arrays:
        return []
    arrays = {name: values.tolist() for name, values in model.arrays.items() if name in KEPT}
    sizes = np.bincount(model.arrays["label"], minlength=len(model.classes)).tolist()
    order = worst_first(model)
    rows = [
        [
            model.classes[j],
            model.classes[arrays["nearest_class"][j]],
            number(math.degrees(arrays["nearest_angle"][j]), 2),
            number(sizes[j], 0),
            number(100 * arrays["class_accuracy"][j], 2),
            number(arrays["class_sample_margin"][j], 4),
            number(arrays["class_gamma"][j], 4),
        ]
        for j in order[:LISTED]
    ]
    which = f"The {LISTED} lowest of {len(order):,} classes, by" if len(order) > LISTED else "Sorted by"
    text = (
        f"{which} accuracy, then smallest sample margin. The nearest class is the one whose prototype is at "
        "the smallest angle. Click a column heading to sort by it."
    )
    grid = Grid("", HEADINGS, [("", [[Cell(text) for text in row] for row in rows])], words=2)
    return [
        Section("Worst classes" if len(order) > LISTED else "Classes, worst first", text, html_table(grid))
    ]
