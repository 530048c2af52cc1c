"""Contents of a page, in order: how good the model is, where it fails and why, then theory and settings."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tammes.lab.report.class_examples import class_examples
from tammes.lab.report.class_sizes import class_sizes
from tammes.lab.report.collapse_table import collapse_table
from tammes.lab.report.confusions import confusions
from tammes.lab.report.face_pairs import face_pairs
from tammes.lab.report.glossary import glossary
from tammes.lab.report.margin_bound_table import margin_bound_table
from tammes.lab.report.margin_histograms import margin_histograms
from tammes.lab.report.mistakes import worst_mistakes
from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Page, Part, Section
from tammes.lab.report.prototype_cosines import prototype_cosines
from tammes.lab.report.query_examples import query_examples
from tammes.lab.report.results import results
from tammes.lab.report.sample_map import sample_map
from tammes.lab.report.settings import settings
from tammes.lab.report.summary import lead, margin_shares
from tammes.lab.report.templating import render
from tammes.lab.report.thumbnails import distinct, stored_photos, within_budget
from tammes.lab.report.training_curves import training_curves
from tammes.lab.report.worst_classes import worst_classes

Topic = Callable[[ModelResults], list[Section]]


def notes(model: ModelResults) -> list[Section]:
    """Notes that a reader should see first."""
    lines = [*model.notes]
    empty = int(np.isnan(model.arrays.get("class_accuracy", np.zeros(1))).sum())
    if empty:
        lines.append(
            f"{empty:,} of {len(model.classes):,} classes have no test samples and are not evaluated."
        )
    return [Section("Notes", "", render("notes.html", lines=lines))] if lines else []


TOPICS: tuple[Topic, ...] = (
    notes,
    query_examples,
    face_pairs,
    worst_mistakes,
    confusions,
    worst_classes,
    class_sizes,
    class_examples,
    sample_map,
    margin_histograms,
    prototype_cosines,
    collapse_table,
    margin_bound_table,
)
"""Each returns sections about one model, or none if it does not apply."""


def page(models: Sequence[ModelResults], title: str) -> Page:
    """All sections about all models."""
    if not models:
        raise ValueError("A page needs at least one model to show, got none.")
    photos = within_budget([stored_photos(model.arrays) for model in models])
    models = [dataclasses.replace(model, photos=some) for model, some in zip(models, photos, strict=True)]
    return Page(
        title=title,
        lead=lead(models),
        opening=[results(models)],
        parts=[Part(m.label, [section for topic in TOPICS for section in topic(m)]) for m in models],
        closing=[
            *training_curves(models),
            margin_shares(models),
            glossary(models),
            *settings(models),
        ],
        photos=distinct(photos),
        first=_best(models),
    )


def _best(models: Sequence[ModelResults]) -> int:
    """The model with the highest accuracy or mAP, if all have one."""
    for key in ("accuracy", "mAP"):
        if all(key in model.numbers for model in models):
            return max(range(len(models)), key=lambda place: models[place].numbers[key])
    return 0


def write_page(models: Sequence[ModelResults], path: str | Path, *, title: str = "") -> None:
    """Write one self-contained HTML file that shows and explains how good models are.

    Args:
        models: runs, or what `inspect` returned.
        path: the file.
        title: defaults to the name of the model, or how many there are.
    """
    name = models[0].name if len(models) == 1 else f"{len(models)} models"
    page(models, title or f"Report on {name}").write(Path(path))
