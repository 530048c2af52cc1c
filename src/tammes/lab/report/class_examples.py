"""Typical and odd photos of each class."""

from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section
from tammes.lab.report.templating import render
from tammes.metrics._example_samples import example_samples


def class_examples(model: ModelResults) -> list[Section]:
    """The photos closest to the prototype of their class, and those farthest from it."""
    if not model.photos:
        return []
    found = example_samples(model.arrays)
    classes = [
        {
            "name": model.classes[j],
            "typical": model.photo_cards(found.typical[j]),
            "odd": model.photo_cards(found.odd[j]),
        }
        for j in found.typical
    ]
    classes = [one for one in classes if one["typical"] or one["odd"]]
    if not classes:
        return []
    part = (
        ""
        if len(classes) == len(model.classes)
        else f" Listed: the {len(classes)} classes with the lowest accuracy."
    )
    text = (
        "Typical: the test images of a class closest to its prototype. Odd: those farthest from it. "
        f"A red frame marks a mistake.{part}"
    )
    return [Section("Typical and odd examples", text, render("class_examples.html", classes=classes))]
