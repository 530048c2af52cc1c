"""Histograms of sample margins and similarities (the paper's Figs. 4 to 6)."""

import numpy as np

from tammes.lab.report.charts import Series, histogram
from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section, figure
from tammes.lab.report.templating import number, render

TEXT = (
    "Left: the margin of each sample; 0 is the decision boundary. Right: the cosine of "
    "each sample with its own prototype and with the nearest other one; the less they overlap, the better. "
    "Switch to logarithmic counts to see the outliers."
)


def margin_histograms(model: ModelResults) -> list[Section]:
    """Histograms of sample margins and of cosines."""
    if "sample_margin" not in model.arrays:
        return []
    margin, right = model.arrays["sample_margin"], model.correct
    mean, ceiling = model.numbers["sample_margin"], model.numbers["sample_margin_ceiling"]
    margins = histogram(
        "sample margins",
        _series(("right", "var(--good)", margin[right]), ("wrong", "var(--bad)", margin[~right])),
        label="own cosine − nearest other",
        marks=[(mean, f"mean {number(mean, 3)}"), (ceiling, f"mean at most {ceiling:.3f}")],
    )
    charts = [figure(margins, "Green: classified correctly. Red: misclassified.")]
    if "similarity" in model.arrays:
        own = model.arrays["similarity"]
        cosines = histogram(
            "similarities",
            _series(("nearest other", "var(--rival)", own - margin), ("own prototype", "var(--c0)", own)),
            label="cosine of sample and prototype",
        )
        charts.append(figure(cosines, "Blue: with its own prototype. Orange: with the nearest other one."))
    return [Section("Sample margins", TEXT, render("histograms.html", charts=charts))]


def _series(*groups: tuple[str, str, np.ndarray]) -> list[Series]:
    """The groups that have samples."""
    return [Series(name, shade, np.asarray(v, np.float64)) for name, shade, v in groups if len(v)]
