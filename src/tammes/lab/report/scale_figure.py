"""Measures against the scale s, ours beside the paper's."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tammes.lab.report.figure_files import save_figure
from tammes.lab.report.tables import Records, TableRow

COLORS = {"ArcFace": "#4269d0", "CosFace": "#9c6b2f", "NormFace": "#6a6f78", "LM-Softmax": "#d0342c"}


def draw_scales(rows: Sequence[TableRow], records: Records, path: Path) -> None:
    """mAP in two panels: our finished rows, and the paper's numbers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    ours = {row.key: 100 * records[row.key]["metrics"]["mAP"] for row in rows if _has_map(records, row.key)}
    printed = {row.key: row.paper["mAP"] for row in rows if "mAP" in row.paper}
    for axes, title, found in zip(panels, ("ours", "the paper's"), (ours, printed), strict=True):
        _panel(axes, rows, found)
        axes.set(title=title, xlabel="scale s", xscale="log", xlim=(9, 71))
        axes.set_xticks([10, 20, 32, 64], ["10", "20", "32", "64"], minor=False)
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mAP, %")
    panels[1].legend(frameon=False, fontsize=8, loc="lower right")
    save_figure(figure, path, dpi=140)


MEASURES = (("class_margin_deg", 1.0, "class margin, °"), ("accuracy", 100.0, "accuracy, %"))


def draw_margin_and_accuracy(rows: Sequence[TableRow], records: Records, title: str, path: Path) -> None:
    """Four panels: class margin and accuracy against s, ours and the paper's, for every loss.

    Solid lines are losses alone, dashed ones with 0.5 R_sm; losses without a scale are horizontal lines.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 7.2), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    for line, (metric, factor, words) in zip(panels, MEASURES, strict=True):
        ours = {
            row.key: factor * records[row.key]["metrics"][metric]
            for row in rows
            if metric in (records.get(row.key, {}).get("metrics") or {})
        }
        printed = {row.key: row.paper[metric] for row in rows if metric in row.paper}
        for axes, whose, found in zip(line, ("ours", "the paper's"), (ours, printed), strict=True):
            _with_and_without(axes, rows, found)
            axes.set(title=whose, xscale="log", xlim=(4.6, 70))
            axes.set_xticks([5, 10, 20, 40, 64], ["5", "10", "20", "40", "64"])
            axes.minorticks_off()
            axes.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel(words)
    for axes in panels[1]:
        axes.set_xlabel("scale s")
    handles = {
        label: handle
        for axes in panels.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    save_figure(figure, path, dpi=140)


def _with_and_without(axes: Any, rows: Iterable[TableRow], found: Mapping[str, float]) -> None:
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        loss, scale = row.label.partition(" (")[0], re.search(r"\(s=(\d+)\)(?: \+ (0\.5 R_sm))?$", row.label)
        if row.key in found and scale is not None:
            points.setdefault((loss, scale[2] or ""), []).append((int(scale[1]), found[row.key]))
        elif row.key in found and row.label in LEVEL:
            axes.axhline(
                found[row.key], color="black", linewidth=1, linestyle=LEVEL[row.label], label=row.label
            )
    for (loss, term), pairs in points.items():
        x, y = zip(*sorted(pairs), strict=True)
        style = {
            "color": COLORS.get(loss),
            "linestyle": "--" if term else "-",
            "markerfacecolor": "white" if term else None,
            "marker": "o",
            "markersize": 4,
        }
        axes.plot(x, y, label=f"{loss} + {term}" if term else loss, **style)


LEVEL = {"CE": "-", "CE + 0.5 R_sm": "--"}


def _has_map(records: Records, key: str) -> bool:
    return "mAP" in (records.get(key, {}).get("metrics") or {})


def _panel(axes: Any, rows: Iterable[TableRow], found: Mapping[str, float]) -> None:
    """One line per loss over its scales; losses without a scale are horizontal lines."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        scale = re.search(r"s=(\d+)", row.label)
        if row.key not in found:
            continue
        if scale is None:
            axes.axhline(found[row.key], color="black", linestyle=":", linewidth=1, label=row.label)
        else:
            points.setdefault(row.label.partition(" (")[0], []).append((int(scale[1]), found[row.key]))
    for loss, pairs in points.items():
        x, y = zip(*sorted(pairs), strict=True)
        bold = 2.4 if loss == "LM-Softmax" else 1.4
        axes.plot(x, y, marker="o", markersize=4, color=COLORS.get(loss), linewidth=bold, label=loss)
