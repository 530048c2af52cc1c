"""Face verification: ROC curve, scores of same and different pairs, the worst mistakes as photos."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from tammes.lab.report.charts import Series, histogram, log_curve
from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section, figure
from tammes.lab.report.templating import number, render
from tammes.lab.report.thumbnails import data_url
from tammes.metrics.verification import Roc, auc, roc

CURVE_POINTS = 300
"""Maximum number of points of a drawn curve."""

MISTAKES = {False: "Two people, taken for one", True: "One person, taken for two"}


def face_pairs(model: ModelResults) -> list[Section]:
    """One section per list of pairs that the run was verified on."""
    return [_section(name, arrays) for name, arrays in model.verified.items()]


def _section(name: str, arrays: Mapping[str, np.ndarray]) -> Section:
    scores, same = arrays["scores"].astype(np.float64), arrays["same"]
    curve, threshold = roc(scores, same), float(arrays["threshold"])
    bars = histogram(
        "scores of pairs",
        [
            Series("different", "var(--rival)", scores[~same]),
            Series("same", "var(--c0)", scores[same]),
        ],
        label="cosine of the two images",
        marks=[(threshold, f"threshold {threshold:.3f}")],
    )
    charts = [
        figure(_curve(curve), f"Area under the curve, on a linear axis: {100 * auc(curve):.2f} %."),
        figure(bars, "Blue: pairs of one person. Orange: pairs of two. The less they overlap, the better."),
    ]
    text = (
        f"{int(same.sum()):,} pairs of one person and {int((~same).sum()):,} pairs of two people. The curve "
        "shows the share of same pairs accepted (upwards) against the share of different pairs accepted (to "
        "the right, logarithmic): the closer to the top left, the better."
    )
    body = render("face_pairs.html", charts=charts, mistakes=_mistakes(arrays))
    return Section(f"Face verification: {name}", text, body)


def _curve(curve: Roc) -> Markup:
    """The curve from one false accept upwards, at logarithmically spaced points."""
    logs = np.log10(curve.far[curve.far > 0])
    first = len(curve.far) - len(logs)
    steps = np.searchsorted(logs, np.linspace(logs[0], 0, CURVE_POINTS)).clip(0, len(logs) - 1)
    chosen = first + np.unique(steps)
    return log_curve(
        "ROC curve",
        curve.far[chosen].tolist(),
        curve.tar[chosen].tolist(),
        labels=("false accept rate", "true accept rate"),
    )


def _mistakes(arrays: Mapping[str, np.ndarray]) -> dict[str, list[dict[str, Any]]]:
    """The pairs farthest on the wrong side of the threshold, by kind of mistake."""
    if not len(arrays.get("mistake_scores", ())):
        return {}
    found = {}
    for kind, title in MISTAKES.items():
        chosen = np.flatnonzero(arrays["mistake_same"] == kind)
        columns = (arrays[f"mistake_{what}"][chosen] for what in ("pictures", "names", "scores"))
        pairs = [
            {
                "photos": list(zip(map(data_url, pictures), names.tolist(), strict=True)),
                "cosine": number(float(score), 3),
            }
            for pictures, names, score in zip(*columns, strict=True)
        ]
        found |= {title: pairs} if pairs else {}
    return found
