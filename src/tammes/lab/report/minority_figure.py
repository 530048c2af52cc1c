"""Minority collapse: angles between prototypes and means of rare classes against the imbalance ratio."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tammes.lab.report.figure_files import save_figure

CONVERGED = 1e-3
"""Largest gradient of a row that counts as an optimum."""
MARKERS = {"step": "*", "long_tailed": "D"}
"""Marker of a trained network, by the shape of its imbalance."""


def draw_minority_collapse(
    rows: Sequence[Mapping[str, Any]], path: Path, trained: Sequence[Mapping[str, Any]] = ()
) -> None:
    """One panel without R_w and one with it. For each loss a line of the prototypes, with a cross where those
    of rare classes have merged, and a dotted line of the class means.

    Args:
        rows: optima with free features, with `loss`, `ratio`, `R_w`, `rare_deg`, `rare_means_deg`, `merged`
            and `gradient`; rows that have not converged are not drawn.
        path: the file to write.
        trained: trained networks, with `loss`, `ratio`, `R_w`, `class_margin_deg` and `shape`: stars for step
            imbalance, which is that of the lines, diamonds for long tails.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, centered in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
        for loss in dict.fromkeys(row["loss"] for row in rows):
            own = sorted(
                (
                    row
                    for row in rows
                    if (row["loss"], row["R_w"]) == (loss, centered) and row["gradient"] <= CONVERGED
                ),
                key=lambda row: row["ratio"],
            )
            (line,) = axes.plot(
                [row["ratio"] for row in own], [row["rare_deg"] for row in own], marker="o", label=loss
            )
            means = [row["rare_means_deg"] for row in own]
            axes.plot([row["ratio"] for row in own], means, ":", color=line.get_color())
            met = [row for row in own if row["merged"]]
            axes.scatter(
                [row["ratio"] for row in met],
                [row["rare_deg"] for row in met],
                marker="x",
                s=80,
                color=line.get_color(),
            )
            own_runs = [row for row in trained if (row["loss"], row["R_w"]) == (loss, centered)]
            for row in own_runs:
                _mark(axes, row["shape"], [row["ratio"]], [row["class_margin_deg"]], color=line.get_color())
        axes.set(xscale="log", xlabel="imbalance ratio", title="with R_w" if centered else "without R_w")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("smallest angle between rare classes, degrees")
    figure.axes[0].plot([], [], ":", color="gray", label="class means")
    for shape in MARKERS:
        if any(row["shape"] == shape for row in trained):
            _mark(figure.axes[0], shape, [], [], color="white", label=f"trained, {shape.replace('_', '-')}")
    # The panel with R_w has room: its lines stay at the top.
    figure.axes[1].legend(*figure.axes[0].get_legend_handles_labels(), loc="lower left", frameon=False)
    save_figure(figure, path)


def _mark(axes: Any, shape: str, ratios: list[float], degrees: list[float], **style: Any) -> None:
    """Points of trained networks."""
    size = {"*": 130, "D": 50}[MARKERS[shape]]
    outline = {"edgecolors": "black", "linewidths": 0.6, "zorder": 3}
    axes.scatter(ratios, degrees, marker=MARKERS[shape], s=size, **outline, **style)
