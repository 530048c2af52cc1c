"""Figures of training runs: curves over epochs, and histograms over test samples."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tammes.lab.report.figure_files import save_figure
from tammes.lab.report.tables import Records

INK, ACCENT, GREY = "#24466b", "#c8352c", "#8a929c"


class FigureMeasure(NamedTuple):
    """A curve of the records; `most` is the metric that bounds it."""

    title: str
    curve: str
    factor: float = 1.0
    most: str = ""


MEASURES = (
    FigureMeasure("test accuracy, %", "accuracy", 100.0),
    FigureMeasure("class margin, deg", "class_margin_deg", most="class_margin_maximum_deg"),
    FigureMeasure("mean sample margin", "sample_margin", most="sample_margin_ceiling"),
)


LINES = ("-", "--", ":", "-.")


def draw_measures(records: Records, title: str, path: Path) -> None:
    """Accuracy, class margin and sample margin over the epochs; dashed grey lines are the maxima."""
    figure, axes = _figure(1, len(MEASURES), title, legend=len(records))
    for ax, measure in zip(axes[0], MEASURES, strict=True):
        for style, record in zip(_styles(records), records.values(), strict=True):
            ax.plot(_epochs(record), measure.factor * _curve(record, measure.curve), **style)
        tops = {
            round(r["metrics"][measure.most], 6)
            for r in records.values()
            if measure.most and measure.most in r.get("metrics", {})
        }
        for top in tops:
            ax.axhline(top, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.set_title(measure.title, fontsize=9, loc="left")
        ax.set_xlabel("epoch", fontsize=8)
    _legend(figure, axes[0][0])
    save_figure(figure, path)


def draw_norm_ratios(records: Records, title: str, path: Path) -> None:
    """Ratio of the largest to the smallest prototype norm over the epochs (the paper's Fig. 1)."""
    figure, axes = _figure(1, 1, title, legend=len(records))
    for style, record in zip(_styles(records), records.values(), strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = _curve(record, "largest_norm") / _curve(record, "smallest_norm")
        axes[0][0].plot(_epochs(record), ratios, **style)
    axes[0][0].axhline(1, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
    axes[0][0].set_title("largest / smallest norm of a prototype", fontsize=9, loc="left")
    axes[0][0].set_xlabel("epoch", fontsize=8)
    _legend(figure, axes[0][0])
    save_figure(figure, path)


def draw_histograms(records: Records, title: str, path: Path) -> None:
    """Cosines of test samples with their own prototype above, their margins below; one column per record."""
    kinds = {"similarity": "cosine with own prototype", "sample_margin": "sample margin"}
    figure, axes = _figure(2, len(records), title, legend=0)
    for line, (kind, name) in enumerate(kinds.items()):
        shown = {label: record["histograms"][kind] for label, record in records.items()}
        low = min(h["low"] for h in shown.values())
        high = max(h["low"] + h["width"] * len(h["counts"]) for h in shown.values())
        for ax, (label, histogram) in zip(axes[line], shown.items(), strict=True):
            _bars(ax, histogram)
            ax.set_xlim(low, high)
            ax.set_xlabel(name, fontsize=8)
            if not line:
                ax.set_title(label, fontsize=9, loc="left")
    save_figure(figure, path)


def _bars(ax: Any, histogram: Mapping[str, Any]) -> None:
    counts = np.asarray(histogram["counts"], dtype=np.float64)
    share = 100 * counts / counts.sum()
    places = histogram["low"] + histogram["width"] * np.arange(len(counts))
    ax.bar(places, share, histogram["width"], align="edge", color=INK, linewidth=0)
    mean = float((places + histogram["width"] / 2) @ counts / counts.sum())
    ax.axvline(mean, color=ACCENT, linewidth=1)
    ax.annotate(f"mean {mean:.2f}", (0.03, 0.9), xycoords="axes fraction", fontsize=8, color=ACCENT)
    ax.set_ylabel("% of samples", fontsize=8)


def _figure(lines: int, columns: int, title: str, *, legend: int) -> tuple[Any, Any]:
    """A grid of small axes, with room on the right for a legend if it has entries."""
    from matplotlib.figure import Figure

    room = 2.4 if legend else 0.0
    figure = Figure(figsize=(3.1 * columns + room, 2.3 * lines + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    axes = figure.subplots(lines, columns, squeeze=False)
    for ax in axes.flat:
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.5)
        ax.set_axisbelow(True)
    return figure, axes


def _styles(records: Records) -> list[dict[str, Any]]:
    """One color per loss; runs that share a loss differ in line style."""
    import matplotlib as mpl

    losses = [record["config"]["objective"].partition(" + ")[0] for record in records.values()]
    different = list(dict.fromkeys(losses))
    shades = mpl.colormaps["turbo"](np.linspace(0.05, 0.95, max(len(different), 2)))
    return [
        {
            "label": label,
            "color": shades[different.index(loss)],
            "linewidth": 1.3,
            "linestyle": LINES[losses[:place].count(loss) % len(LINES)],
            "marker": "o",
            "markersize": 2,
        }
        for place, (label, loss) in enumerate(zip(records, losses, strict=True))
    ]


def _curve(record: Mapping[str, Any], name: str) -> Any:
    """The values of a curve; NaN, which leaves a gap, where there is none."""
    curves = record["curves"]
    return np.array(curves.get(name, [None] * len(curves["epoch"])), dtype=np.float64)


def _epochs(record: Mapping[str, Any]) -> list[int]:
    """The epochs, counted from 1, at which the curves have values."""
    return [epoch + 1 for epoch in record["curves"]["epoch"]]


def _legend(figure: Any, ax: Any) -> None:
    figure.legend(*ax.get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
