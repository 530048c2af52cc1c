"""A map of samples that places similar ones close together."""

from collections import Counter

import numpy as np

from tammes.lab.report.charts import LABELED, Dot, color, scatter
from tammes.lab.report.model_results import ModelResults, unit_rows
from tammes.lab.report.page import Section, figure
from tammes.lab.report.projection import project
from tammes.lab.report.templating import number, render

MAX_STARS = 100
"""Maximum number of classes whose prototypes are drawn."""


def sample_map(model: ModelResults) -> list[Section]:
    """Samples laid out in the plane, and prototypes among them."""
    if "embedding" not in model.arrays or len(model.arrays["shown"]) < 3:
        return []
    points, shown = model.arrays["embedding"].astype(np.float64), model.arrays["shown"].tolist()
    stars = np.empty((0, points.shape[1]))
    if model.prototypes is not None and len(model.classes) <= MAX_STARS:
        stars = unit_rows(model.prototypes).reshape(-1, points.shape[1])
    centers = max(len(stars) // len(model.classes), 1)
    places = project(np.concatenate([points, stars]))
    samples = places[: len(shown)]
    dots = [_sample(model, sample, *place) for sample, place in zip(shown, samples.tolist(), strict=True)]
    dots += [_prototype(model, j // centers, *place) for j, place in enumerate(places[len(shown) :].tolist())]
    labels = sorted({dot.label for dot in dots})
    part = "All" if len(shown) == model.samples else f"{len(shown):,} of"
    text = (
        f"{part} {model.samples:,} samples, one color per class; mistakes are outlined"
        f"{', prototypes are stars' if len(stars) else ''}. {_layout(points.shape[1], places)}"
    )
    body = render(
        "sample_map.html",
        options=[(label, model.classes[label]) for label in labels],
        legend=[(color(j), model.classes[j]) for j in labels] if len(labels) <= LABELED else [],
        chart=figure(scatter("map", dots, _names(model, shown, samples)), kind="square"),
    )
    return [Section("Map", text, body)]


def _names(model: ModelResults, shown: list[int], places: np.ndarray) -> list[tuple[str, float, float]]:
    """Class names at the median of their samples, the class with the most samples first."""
    label = model.arrays["label"][shown]
    classes: list[int] = [j for j, _ in Counter(label.tolist()).most_common()]
    some = [(j, places[label == j]) for j in classes]
    return [(model.classes[j], *np.median(group, axis=0).tolist()) for j, group in some]


def _sample(model: ModelResults, sample: int, x: float, y: float) -> Dot:
    label, prediction = int(model.arrays["label"][sample]), int(model.arrays["prediction"][sample])
    taken = "" if label == prediction else f", taken for {model.classes[prediction]}"
    margin = number(float(model.arrays["sample_margin"][sample]), 3)
    tip = f"{model.classes[label]}{taken}\nmargin {margin}"
    photo = model.photos[sample].key if sample in model.photos else ""
    return Dot(x, y, label, tip, wrong=label != prediction, photo=photo)


def _prototype(model: ModelResults, label: int, x: float, y: float) -> Dot:
    return Dot(x, y, label, f"prototype of {model.classes[label]}", star=True)


def _layout(d: int, places: np.ndarray) -> str:
    if not np.ptp(places, axis=0).any():
        return "All embeddings are equal, so the map shows a single point."
    if d <= 2:
        return "These are the embeddings themselves, scaled to length 1."
    return (
        "Layout by t-SNE: similar samples are close together, but the size of a group and the distance "
        "between groups are not meaningful."
    )
