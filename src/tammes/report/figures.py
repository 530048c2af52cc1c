"""Curves over epochs and histograms over test samples, drawn from the records of rows as PNG, PDF or SVG."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Records = Mapping[str, Mapping[str, Any]]
"""What is drawn, under the name it has in the legend."""

INK, ACCENT, GREY = "#24466b", "#c8352c", "#8a929c"


class Measure(NamedTuple):
    """A curve of the records, and the number of the metrics that it cannot exceed."""

    title: str
    curve: str
    factor: float = 1.0
    most: str = ""


MEASURES = (
    Measure("test accuracy, %", "accuracy", 100.0),
    Measure("class margin, deg", "class_margin_deg", most="class_margin_maximum_deg"),
    Measure("mean sample margin", "sample_margin", most="sample_margin_ceiling"),
)


LINES = ("-", "--", ":", "-.")


def draw_measures(records: Records, title: str, path: Path) -> None:
    """Accuracy, class margin and sample margin over the epochs; dashed grey is the most that can be."""
    figure, axes = _figure(1, len(MEASURES), title, legend=len(records))
    for ax, measure in zip(axes[0], MEASURES, strict=True):
        for style, record in zip(_styles(records), records.values(), strict=True):
            values = [measure.factor * value for value in record["curves"][measure.curve]]
            ax.plot(_epochs(record), values, **style)
        tops = {
            round(r["metrics"][measure.most], 6) for r in records.values() if measure.most and "metrics" in r
        }
        for top in tops:
            ax.axhline(top, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.set_title(measure.title, fontsize=9, loc="left")
        ax.set_xlabel("epoch", fontsize=8)
    _legend(figure, axes[0][0])
    save(figure, path)


def draw_norm_ratios(records: Records, title: str, path: Path) -> None:
    """Largest over smallest norm of the prototypes, over the epochs (paper, Fig. 1)."""
    figure, axes = _figure(1, 1, title, legend=len(records))
    for style, record in zip(_styles(records), records.values(), strict=True):
        curves = record["curves"]
        pairs = zip(curves["largest_norm"], curves["smallest_norm"], strict=True)
        axes[0][0].plot(_epochs(record), [large / small for large, small in pairs], **style)
    axes[0][0].axhline(1, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
    axes[0][0].set_title("largest / smallest norm of a prototype", fontsize=9, loc="left")
    axes[0][0].set_xlabel("epoch", fontsize=8)
    _legend(figure, axes[0][0])
    save(figure, path)


def draw_histograms(records: Records, title: str, path: Path) -> None:
    """Above the cosines of test samples with their own prototypes, below their margins; a column a record."""
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
    save(figure, path)


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
    """A figure of small axes, with room on the right for a legend of so many entries."""
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
    """A colour for each loss; a line of its own for what is added to it, or else differs."""
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


def _epochs(record: Mapping[str, Any]) -> list[int]:
    """The epochs, counted from 1, after which the record's curves have their values."""
    return [epoch + 1 for epoch in record["curves"]["epoch"]]


def _legend(figure: Any, ax: Any) -> None:
    figure.legend(*ax.get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)


def save(figure: Any, path: Path) -> None:
    """A figure of matplotlib as a file that is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=130, format=path.suffix[1:])
    temporary.replace(path)
