"""Sections on pairs of faces: the ROC curve, the scores of same and different pairs, the worst mistakes."""

import base64
import io
from collections.abc import Mapping
from html import escape

import numpy as np
from jaxtyping import UInt8

from tammes.metrics.verification import Roc, auc, roc
from tammes.report.charts import Series, histogram, log_curve
from tammes.report.page import Section, figure
from tammes.report.subject import Subject

POINTS = 300
"""A curve is drawn through so many of its points at the most."""


def verification(s: Subject) -> list[Section]:
    """What is known of each list of pairs that the run was verified on."""
    return [_section(name, arrays) for name, arrays in s.verified.items()]


def _section(name: str, arrays: Mapping[str, np.ndarray]) -> Section:
    scores, same = arrays["scores"].astype(np.float64), arrays["same"]
    curve, threshold = roc(scores, same), float(arrays["threshold"])
    groups = [("different", "var(--rival)", scores[~same]), ("same", "var(--c0)", scores[same])]
    bars = histogram(
        "scores of pairs",
        [Series(kind, shade, values) for kind, shade, values in groups],
        label="cosine of the two images",
        marks=[(threshold, f"threshold {threshold:.3f}")],
    )
    charts = [
        figure(_curve(curve), f"Area below the curve, on a linear axis: {100 * auc(curve):.2f} %."),
        figure(bars, "Blue: pairs of one person. Orange: pairs of two. The less they overlap, the better."),
    ]
    words = (
        f"{int(same.sum()):,} pairs of one person and {int((~same).sum()):,} pairs of two. The curve shows "
        "how many same pairs are accepted (upwards) when so many different ones are (to the right, by powers "
        "of ten): the farther up on the left, the better."
    )
    return Section(
        f"Same person or not: {name}",
        words,
        f'<div class="charts">{"".join(charts)}</div>{_mistakes(arrays)}',
    )


def _curve(curve: Roc) -> str:
    """From the rate of one false accept on, through points at even steps of its logarithm."""
    logs = np.log10(curve.far[curve.far > 0])
    first = len(curve.far) - len(logs)
    steps = np.searchsorted(logs, np.linspace(logs[0], 0, POINTS)).clip(0, len(logs) - 1)
    chosen = first + np.unique(steps)
    return log_curve(
        "ROC curve",
        curve.far[chosen].tolist(),
        curve.tar[chosen].tolist(),
        labels=("false accept rate", "true accept rate"),
    )


def _mistakes(arrays: Mapping[str, np.ndarray]) -> str:
    """The pairs farthest on the wrong side of the threshold, as pictures."""
    if not len(arrays.get("mistake_scores", ())):
        return ""
    parts = []
    for kind, title in ((False, "Two people, taken for one"), (True, "One person, taken for two")):
        chosen = np.flatnonzero(arrays["mistake_same"] == kind)
        columns = (arrays[f"mistake_{what}"][chosen] for what in ("pictures", "names", "scores"))
        cells = "".join(_pair(*pair) for pair in zip(*columns, strict=True))
        if cells:
            row = '<div style="display: flex; flex-wrap: wrap; gap: 4px 20px">'
            parts.append(f"<h4>{title}</h4>{row}{cells}</div>")
    return "".join(parts)


def _pair(pictures: UInt8[np.ndarray, "2 h w 3"], names: np.ndarray, score: np.float32) -> str:
    images = "".join(map(_image, pictures, names.tolist()))
    words = f"{score:.3f}".replace("-", "−")
    return f"<figure>{images}<figcaption>cosine {words}</figcaption></figure>"


def _image(pixels: UInt8[np.ndarray, "h w 3"], name: str) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    text, word = base64.b64encode(buffer.getvalue()).decode(), escape(name)
    return f'<img width="88" alt="{word}" title="{word}" src="data:image/jpeg;base64,{text}">'
