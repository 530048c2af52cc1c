"""Prototypes and features of an optimum: on a circle, on a sphere, or as matrices of angles."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from tammes.lab.report.figure_files import save_figure
from tammes.lab.report.sphere_figure import GREEN, GREY, RED, Panel, draw_spheres

Units = Float[np.ndarray, "count d"]


def draw_optimum(
    title: str, prototypes: Units, features: Units, labels: Int[np.ndarray, " count"], path: Path
) -> None:
    """Draw unit prototypes and features.

    In two dimensions as arrows and points on the circle, in three on the sphere (.html: to rotate), in more
    as the angles between prototypes, and between the mean feature of each class and every prototype.
    """
    d = prototypes.shape[1]
    if d == 3:
        draw_spheres([Panel(title, prototypes, features)], path)
        return
    check_plot_suffix(d, path)
    figure = _circle(prototypes, features) if d == 2 else _angle_matrices(prototypes, features, labels)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path, dpi=160)


def check_plot_suffix(d: int, path: Path) -> None:
    """A page to rotate is for three dimensions only."""
    if path.suffix == ".html" and d != 3:
        raise ValueError(f"A page to rotate requires D = 3, got {d}. Use a .png, .pdf or .svg file.")


def _circle(prototypes: Units, features: Units) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4.2), layout="constrained")
    axes: Any = figure.add_subplot(aspect="equal")
    turn = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turn), np.sin(turn), color=GREY, linewidth=0.8)
    zeros = np.zeros(len(prototypes))
    axes.quiver(zeros, zeros, *prototypes.T, color=RED, angles="xy", scale_units="xy", scale=1, width=0.008)
    axes.scatter(*features.T, color=GREEN, s=18, zorder=3)
    for place, names in _names_at(prototypes):
        axes.annotate(names, 1.14 * place, ha="center", va="center", fontsize=8)
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
    axes.set_axis_off()
    return figure


def _names_at(prototypes: Units) -> list[tuple[Float[np.ndarray, " d"], str]]:
    """Places on the circle with the classes there; classes that have merged share a label."""
    places: list[tuple[Float[np.ndarray, " d"], list[str]]] = []
    for name, point in enumerate(prototypes):
        near = next((names for place, names in places if place @ point > np.cos(np.radians(3))), None)
        if near is None:
            places.append((point, [str(name)]))
        else:
            near.append(str(name))
    return [(place, ", ".join(names)) for place, names in places]


def _angle_matrices(prototypes: Units, features: Units, labels: Int[np.ndarray, " count"]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    between = _degrees(prototypes, prototypes)
    np.fill_diagonal(between, np.nan)
    means = np.stack([features[labels == j].mean(0) for j in range(len(prototypes))])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    to_prototypes = _degrees(means, prototypes)
    top = max(float(np.nanmax(between)), float(to_prototypes.max()))
    for axes, angles in ((left, between), (right, to_prototypes)):
        image = axes.imshow(angles, vmin=0, vmax=top, cmap="viridis")
    left.set(title="between prototypes", xlabel="class", ylabel="class")
    right.set(title="feature to prototype", xlabel="class of the prototype", ylabel="class of the feature")
    figure.colorbar(image, ax=[left, right], label="angle, degrees", shrink=0.8)
    return figure


def _degrees(a: Units, b: Units) -> Float[np.ndarray, "rows columns"]:
    return np.degrees(np.arccos(np.clip(a @ b.T, -1.0, 1.0)))
