"""The paper's Figs. 7, 8 and 12 to 16 from records: curves with and without R_w, histograms over lambda."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Record = Mapping[str, Any]

CURVES = {"accuracy": ("test accuracy, %", 100.0), "class_margin_deg": ("class margin, degrees", 1.0)}
HISTOGRAMS = {"similarity": "similarity to the own prototype", "sample_margin": "sample margin"}


def draw_curves(pairs: Mapping[str, tuple[Record | None, Record | None]], path: Path) -> None:
    """Accuracy and class margin over epochs: dashed without R_w, solid with it (Fig. 7).

    Args:
        pairs: for each loss the record without and that with R_w, None where there is none.
        path: the picture to write.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, (name, (label, factor)) in zip(figure.subplots(1, 2), CURVES.items(), strict=True):
        for number, records in enumerate(pairs.values()):
            for record, style in zip(records, ("--", "-"), strict=True):
                if record is not None:
                    epochs = np.array(record["curves"]["epoch"]) + 1
                    values = factor * np.array(record["curves"][name], dtype=float)
                    axes.plot(epochs, values, style, color=f"C{number}", linewidth=1.4)
        axes.set(xlabel="epoch", ylabel=label)
        axes.spines[["top", "right"]].set_visible(False)
    handles = [Line2D([], [], color=f"C{number}", label=loss) for number, loss in enumerate(pairs)]
    handles.append(Line2D([], [], color="0.4", linestyle="--", label="plain"))
    handles.append(Line2D([], [], color="0.4", linestyle="-", label="with R_w"))
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    save(figure, path)


def draw_histograms(records: Mapping[str, Record], path: Path) -> None:
    """Similarities and sample margins of the test images, a column for each lambda (Figs. 8, 12 to 16).

    Args:
        records: under the words that head their columns.
        path: the picture to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.3 * len(records), 4.2), layout="constrained")
    grid = figure.subplots(2, len(records), sharex="row", sharey="row", squeeze=False)
    for row, (name, label) in zip(grid, HISTOGRAMS.items(), strict=True):
        for axes, (head, record) in zip(row, records.items(), strict=True):
            stored = record["histograms"][name]
            edges = stored["low"] + stored["width"] * np.arange(len(stored["counts"]) + 1)
            axes.stairs(stored["counts"], edges, fill=True, color="#2f6fb0")
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlabel(label, fontsize=8)
            axes.tick_params(labelsize=8)
            if name == "similarity":
                axes.set_title(head, fontsize=10)
        row[0].set_ylabel("test images")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """A matplotlib figure as a file that is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=150, format=path.suffix[1:])
    temporary.replace(path)


def curves_by_loss(
    losses: Mapping[str, str], records: Mapping[str, Record], strength: int
) -> dict[str, tuple[Record | None, Record | None]]:
    """For each loss that has one, its records at lambda = 0 and at `strength`; `losses` begin their keys."""
    pairs = {
        loss: (records.get(f"{start}-0"), records.get(f"{start}-{strength}"))
        for loss, start in losses.items()
    }
    return {loss: pair for loss, pair in pairs.items() if any(pair)}


def histograms_by_lambda(
    start: str, records: Mapping[str, Record], strengths: Sequence[int]
) -> dict[str, Record]:
    """The records of one loss over lambda, those that are there and hold histograms."""
    found = {f"λ = {s}": records.get(f"{start}-{s}") for s in strengths}
    return {head: r for head, r in found.items() if r is not None and r.get("histograms")}
