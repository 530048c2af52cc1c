"""The paper's class margins against those computed with free features."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tammes.lab.report.figure_files import save_figure

COLORS = {
    "CosFace": "#0072b2",
    "ArcFace": "#d55e00",
    "NormFace": "#009e73",
    "LDAM": "#cc79a7",
    "LM-Softmax": "#000000",
}
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def draw_free_features(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One panel per data set: computed angles on the x-axis, printed ones on the y-axis.

    Args:
        rows: with `dataset`, `loss`, `strength` (lambda), `class_margin_deg` and `printed_deg`.
        path: the file to write.
    """
    from matplotlib.figure import Figure

    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    figure = Figure(figsize=(5.2 * len(datasets), 5), layout="constrained")
    for axes, dataset in zip(figure.subplots(1, len(datasets), squeeze=False)[0], datasets, strict=True):
        axes.plot([0, 100], [0, 100], color="0.8", linewidth=1, zorder=0)
        for loss, color in COLORS.items():
            some = [row for row in rows if (row["dataset"], row["loss"]) == (dataset, loss)]
            for plain, face in ((True, color), (False, "none")):
                kept = [row for row in some if (row["strength"] == 0) == plain]
                axes.scatter(
                    [row["class_margin_deg"] for row in kept],
                    [row["printed_deg"] for row in kept],
                    s=36 if plain else 18,
                    facecolors=face,
                    edgecolors=color,
                    linewidths=0.9,
                    label=loss if plain else None,
                )
        axes.set(xlim=(0, 100), ylim=(0, 100), aspect="equal", title=NAMES.get(dataset, dataset))
        axes.set_xlabel("class margin with free features, degrees")
        axes.set_ylabel("class margin printed in the paper, degrees")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, title="filled: no R_w; open: with R_w", alignment="left")
    save_figure(figure, path)
