"""The remaining gradient halfway to the largest margins, against the scale."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tammes.lab.report.figure_files import save_figure


def draw_gradients(
    scales: Sequence[float],
    gradients: Mapping[str, Mapping[str, Sequence[float]]],
    path: Path,
    *,
    vanished: float,
) -> None:
    """One panel per loss, one curve per number of classes.

    Args:
        scales: on the horizontal axis.
        gradients: by loss and number of classes, one per scale, relative to its maximum.
        path: the file to write.
        vanished: the level below which training stalls, drawn as a line.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    panels = figure.subplots(1, len(gradients), sharey=True, squeeze=False)[0]
    for axes, (loss, curves) in zip(panels, gradients.items(), strict=True):
        for position, (k, values) in enumerate(curves.items()):
            color = colormaps["viridis"](0.9 * position / max(1, len(curves) - 1))
            axes.plot(scales, values, color=color, label=f"{int(k):,} classes")
        axes.axhline(vanished, color="black", linestyle=":", linewidth=1)
        axes.set(title=loss, xlabel="scale s", xscale="log", yscale="log", ylim=(1e-10, 2))
        axes.set_xticks([2, 4, 8, 16, 32, 64, 128], ["2", "4", "8", "16", "32", "64", "128"])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("remaining gradient, relative to its maximum")
    panels[0].legend(frameon=False, fontsize=8, loc="lower left")
    save_figure(figure, path, dpi=140)
