"""What stands on a page, and in which order."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tammes.report import details, imbalance, overview
from tammes.report.meaning import meaning
from tammes.report.page import Page, Part, Section
from tammes.report.retrieval import lists
from tammes.report.sample_map import sample_map
from tammes.report.settings import settings
from tammes.report.subject import Subject
from tammes.report.verification import verification

Topic = Callable[[Subject], list[Section]]

TOPICS: tuple[Topic, ...] = (
    details.notes,
    lists,
    verification,
    details.margins,
    details.confusions,
    details.worst_classes,
    imbalance.class_sizes,
    details.prototypes,
    sample_map,
)
"""Each gives its sections on one model, or none where it has nothing to say."""


def page(subjects: Sequence[Subject], title: str) -> Page:
    """All sections on all models."""
    if not subjects:
        raise ValueError("A page needs at least one model to show, got none.")
    parts = [Part(s.label, [section for topic in TOPICS for section in topic(s)]) for s in subjects]
    return Page(
        title=title,
        lead=overview.lead(subjects),
        opening=[
            overview.results(subjects),
            meaning(subjects),
            overview.closeness(subjects),
            *overview.curves(subjects),
        ],
        parts=parts,
        closing=settings(subjects),
    )


def write_page(subjects: Sequence[Subject], path: str | Path, *, title: str = "") -> None:
    """One self-contained HTML file that shows and explains the margins of models.

    Args:
        subjects: runs, or what `inspect` gave.
        path: the file.
        title: by default the name of the model, or how many there are.
    """
    name = subjects[0].name if len(subjects) == 1 else f"{len(subjects)} models"
    page(subjects, title or f"Margins of {name}").write(Path(path))
