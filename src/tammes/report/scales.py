"""mAP over the scale s: whether a loss depends on it, ours beside the paper's."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tammes.report.tables import Records, TableRow

COLOURS = {"ArcFace": "#4269d0", "CosFace": "#9c6b2f", "NormFace": "#6a6f78", "LM-Softmax": "#d0342c"}


def draw_scales(rows: Sequence[TableRow], records: Records, path: Path) -> None:
    """A PNG of two panels: our finished rows, and the paper's numbers."""
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
    panels[0].set_ylabel("mAP in per cent")
    panels[1].legend(frameon=False, fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)


def _has_map(records: Records, key: str) -> bool:
    return "mAP" in (records.get(key, {}).get("metrics") or {})


def _panel(axes: Any, rows: Iterable[TableRow], found: Mapping[str, float]) -> None:
    """A line for each loss over its scales; what has no scale is a level line."""
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
        axes.plot(x, y, marker="o", markersize=4, color=COLOURS.get(loss), linewidth=bold, label=loss)
