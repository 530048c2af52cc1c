"""A map of samples: those that are alike lie together."""

from html import escape

import numpy as np

from tammes.report.charts import Dot, scatter
from tammes.report.page import Section, figure
from tammes.report.projection import project
from tammes.report.subject import Subject, units

STARRED = 100
"""Up to so many prototypes are on the map."""


def sample_map(s: Subject) -> list[Section]:
    """Samples laid out in the plane, and prototypes among them."""
    if "embedding" not in s.arrays or len(s.arrays["shown"]) < 3:
        return []
    points, shown = s.arrays["embedding"].astype(np.float64), s.arrays["shown"].tolist()
    stars = np.empty((0, points.shape[1]))
    if s.prototypes is not None and len(s.classes) <= STARRED:
        stars = units(s.prototypes)
    places = project(np.concatenate([points, stars])).tolist()
    dots = [_sample(s, sample, *place) for sample, place in zip(shown, places[: len(shown)], strict=True)]
    dots += [_prototype(s, j, *place) for j, place in enumerate(places[len(shown) :])]
    part = "All" if len(shown) == s.samples else f"{len(shown):,} of the"
    words = (
        f"{part} {s.samples:,} samples, a colour for each class, mistakes with a rim"
        f"{', prototypes as stars' if len(stars) else ''}. {_layout(points.shape[1])}"
    )
    return [Section("Map", words, _controls(s, dots) + figure(scatter("map", dots), kind="square"))]


def _sample(s: Subject, sample: int, x: float, y: float) -> Dot:
    label, prediction = int(s.arrays["label"][sample]), int(s.arrays["prediction"][sample])
    taken = "" if label == prediction else f", taken for {s.classes[prediction]}"
    margin = f"{s.arrays['sample_margin'][sample]:.3f}".replace("-", "−")
    return Dot(x, y, label, f"{s.classes[label]}{taken}\nmargin {margin}", wrong=label != prediction)


def _prototype(s: Subject, label: int, x: float, y: float) -> Dot:
    return Dot(x, y, label, f"prototype of {s.classes[label]}", star=True)


def _controls(s: Subject, dots: list[Dot]) -> str:
    labels = sorted({dot.label for dot in dots})
    options = "".join(f'<option value="{label}">{escape(s.classes[label])}</option>' for label in labels)
    return (
        f'<div class="controls"><label>class <select data-classes><option value="">all</option>{options}'
        '</select></label><label><input type="checkbox" data-mistakes> mistakes only</label></div>'
    )


def _layout(d: int) -> str:
    if d <= 2:
        return "These are the embeddings themselves, scaled to length 1."
    return (
        "Laid out by t-SNE: samples that are alike lie together; how far apart groups lie, and how large "
        "they are, means nothing."
    )
