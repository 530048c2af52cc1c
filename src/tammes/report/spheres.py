"""Spheres side by side: red arrows for prototypes, green points for features (the paper's Fig. 3).

For print as PNG or PDF, and as one self-contained HTML page that turns with the mouse.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

Points = Float[np.ndarray, "count 3"]

RED, GREEN, GREY = "#c8352c", "#2a9d5c", "#b8bec6"


class Panel(NamedTuple):
    """One sphere: a title, prototypes, and features that may be none."""

    title: str
    prototypes: Points
    features: Points | None = None


def draw_spheres(panels: Sequence[Panel], path: Path) -> None:
    """The panels as a picture, or as a page where `path` ends in .html."""
    if not panels:
        raise ValueError("A figure needs at least one sphere, got none.")
    for panel in panels:
        if panel.prototypes.ndim != 2 or panel.prototypes.shape[1] != 3:
            raise ValueError(f"A sphere is drawn in 3 dimensions, got points {panel.prototypes.shape}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        _page(panels, path)
    elif path.suffix in (".png", ".pdf", ".svg"):
        _picture(panels, path)
    else:
        raise ValueError(f"A figure is a .png, .pdf, .svg or .html file, got {path.name!r}.")


def _picture(panels: Sequence[Panel], path: Path) -> None:
    from matplotlib.figure import Figure

    columns, count = _grid(len(panels))
    figure = Figure(figsize=(3.0 * columns, 3.3 * count))
    figure.subplots_adjust(left=0, right=1, bottom=0.02, top=1 - 0.12 / count, wspace=0.02, hspace=0.16)
    for place, panel in enumerate(panels):
        axes: Any = figure.add_subplot(count, columns, place + 1, projection="3d")
        _draw_panel(axes, panel)
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=160, format=path.suffix[1:])
    temporary.replace(path)


def _grid(panels: int) -> tuple[int, int]:
    """Columns, three at the most, and rows."""
    columns = min(panels, 3)
    return columns, -(-panels // columns)


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


def _page(panels: Sequence[Panel], path: Path) -> None:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    columns, count = _grid(len(panels))
    figure = make_subplots(
        rows=count,
        cols=columns,
        specs=[[{"type": "scene"}] * columns] * count,
        subplot_titles=[panel.title for panel in panels],
        horizontal_spacing=0.01,
        vertical_spacing=0.05,
    )
    for place, panel in enumerate(panels):
        for trace in _traces(go, panel, legend=place == 0):
            figure.add_trace(trace, row=place // columns + 1, col=place % columns + 1)
    figure.update_scenes(
        xaxis_visible=False,
        yaxis_visible=False,
        zaxis_visible=False,
        camera_eye={"x": 1.2, "y": 1.0, "z": 0.6},
    )
    figure.update_layout(
        height=430 * count,
        margin={"l": 0, "r": 0, "t": 40, "b": 40},
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": 0},
        template="plotly_white",
    )
    temporary = path.with_name(f".{path.name}")
    figure.write_html(temporary, include_plotlyjs=True, full_html=True)
    temporary.replace(path)


def _traces(go: Any, panel: Panel, *, legend: bool) -> list[Any]:
    """The globe, arrows as lines from the centre with cones for heads, and the features."""
    x, y, z = _globe(30)
    ball = go.Surface(
        x=x, y=y, z=z, opacity=0.12, showscale=False, colorscale=[[0, GREY], [1, GREY]], hoverinfo="skip"
    )
    spokes = np.full((3 * len(panel.prototypes), 3), np.nan)
    spokes[0::3], spokes[1::3] = 0.0, panel.prototypes
    lines = go.Scatter3d(
        **dict(zip("xyz", spokes.T, strict=True)),
        mode="lines",
        line={"color": RED, "width": 5},
        name="prototypes",
        showlegend=legend,
        hoverinfo="skip",
    )
    heads = go.Cone(
        **dict(zip("xyz", panel.prototypes.T, strict=True)),
        **dict(zip("uvw", panel.prototypes.T, strict=True)),
        anchor="tip",
        sizemode="raw",
        sizeref=0.14,
        showscale=False,
        colorscale=[[0, RED], [1, RED]],
        hovertext=[f"prototype {j}" for j in range(len(panel.prototypes))],
        hoverinfo="text",
    )
    if panel.features is None:
        return [ball, lines, heads]
    dots = go.Scatter3d(
        **dict(zip("xyz", panel.features.T, strict=True)),
        mode="markers",
        marker={"color": GREEN, "size": 4},
        name="features",
        showlegend=legend,
        hoverinfo="skip",
    )
    return [ball, lines, heads, dots]


def _globe(steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Meridians and parallels of the unit sphere."""
    around, down = np.meshgrid(np.linspace(0, 2 * np.pi, steps), np.linspace(0, np.pi, steps))
    return np.cos(around) * np.sin(down), np.sin(around) * np.sin(down), np.cos(down)
