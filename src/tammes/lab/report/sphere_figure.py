"""Spheres side by side: red arrows for prototypes, green points for features (the paper's Fig. 3).

As PNG, PDF or SVG for print, or as one self-contained HTML page with spheres to rotate.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from tammes._common.files import write_text
from tammes.lab.report.figure_files import FIGURE_FORMATS, save_figure
from tammes.lab.report.page import content_policy
from tammes.lab.report.templating import asset, render

SpherePoints = Float[np.ndarray, "count 3"]

RED, GREEN, GREY = "#c8352c", "#2a9d5c", "#b8bec6"


class Panel(NamedTuple):
    """One sphere: a title, prototypes, and optionally features."""

    title: str
    prototypes: SpherePoints
    features: SpherePoints | None = None


def draw_spheres(panels: Sequence[Panel], path: Path) -> None:
    """Draw the panels as a picture, or as a page if `path` ends in .html."""
    if not panels:
        raise ValueError("A figure needs at least one sphere, got none.")
    for panel in panels:
        if panel.prototypes.ndim != 2 or panel.prototypes.shape[1] != 3:
            raise ValueError(f"A sphere is drawn in 3 dimensions, got points {panel.prototypes.shape}.")
    if path.suffix == ".html":
        write_text(path, _page(panels))
    elif path.suffix in FIGURE_FORMATS:
        save_figure(_picture(panels), path, dpi=160)
    else:
        raise ValueError(f"A figure must be a {', '.join(FIGURE_FORMATS)} or .html file, got {path.name!r}.")


def _picture(panels: Sequence[Panel]) -> Any:
    from matplotlib.figure import Figure

    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.0 * columns, 3.3 * rows))
    figure.subplots_adjust(left=0, right=1, bottom=0.02, top=1 - 0.12 / rows, wspace=0.02, hspace=0.16)
    for place, panel in enumerate(panels):
        axes: Any = figure.add_subplot(rows, columns, place + 1, projection="3d")
        _draw_panel(axes, panel)
    return figure


def _draw_panel(axes: Any, panel: Panel) -> None:
    axes.plot_wireframe(*_globe(25), color=GREY, linewidth=0.35, alpha=0.6)
    zeros = np.zeros_like(panel.prototypes)
    axes.quiver(*zeros.T, *panel.prototypes.T, color=RED, linewidth=1.6, arrow_length_ratio=0.12)
    if panel.features is not None:
        axes.scatter(*panel.features.T, color=GREEN, s=14, depthshade=False)
    axes.set_title(panel.title, fontsize=10, pad=2)
    axes.set_box_aspect((1, 1, 1), zoom=1.5)
    axes.view_init(elev=18, azim=35)
    axes.set_axis_off()


def _globe(steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Meridians and parallels of the unit sphere."""
    around, down = np.meshgrid(np.linspace(0, 2 * np.pi, steps), np.linspace(0, np.pi, steps))
    return np.cos(around) * np.sin(down), np.sin(around) * np.sin(down), np.cos(down)


def _page(panels: Sequence[Panel]) -> str:
    style, script = asset("page.css"), asset("spheres.js")
    spheres = [
        {
            "title": panel.title,
            "prototypes": _rounded(panel.prototypes),
            "features": [] if panel.features is None else _rounded(panel.features),
        }
        for panel in panels
    ]
    policy = content_policy(style=style, script=script)
    return render("spheres.html", spheres=spheres, style=style, script=script, policy=policy) + "\n"


def _rounded(points: SpherePoints) -> list[list[float]]:
    return np.round(points.astype(np.float64), 4).tolist()
