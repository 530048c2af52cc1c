"""The worst mistakes, as photos."""

from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section
from tammes.lab.report.templating import render
from tammes.metrics._example_samples import example_samples


def worst_mistakes(model: ModelResults) -> list[Section]:
    """Misclassified photos, the most confident mistakes first."""
    if not model.photos:
        return []
    shown = [sample for sample in example_samples(model.arrays).mistakes if sample in model.photos]
    if not shown:
        return []
    wrong = int((~model.correct).sum())
    which = (
        f"The {len(shown)} worst of {wrong:,} mistakes" if len(shown) < wrong else f"All {wrong:,} mistakes"
    )
    text = (
        f"{which}, the most confident first. Look for wrong labels, several objects in one photo, and crops "
        "that cut off the object."
    )
    return [Section("Worst mistakes", text, render("mistakes.html", photos=model.photo_cards(shown)))]
