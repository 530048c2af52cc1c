"""A picture of search results: the query and its ranking, correct images framed green, wrong ones red."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tammes._common.types import Picture
from tammes.lab.report.figure_files import save_figure

COLORS = {True: "#1a8f3c", False: "#d0342c", None: "#8a8a8a"}


class RankedImage(NamedTuple):
    """One image of a ranking: whether it is correct (None if unknown), and a caption."""

    picture: Picture
    right: bool | None
    caption: str = ""


class Ranking(NamedTuple):
    """A query with its answers, best first."""

    title: str
    query: Picture
    answers: Sequence[RankedImage]


def draw_ranking(ranking: Ranking, path: Path) -> None:
    """The query framed black, then its answers in their frames, as a picture file."""
    from matplotlib.figure import Figure

    height, width = ranking.query.shape[:2]
    columns = 1 + len(ranking.answers)
    figure = Figure(figsize=(0.95 * columns, 0.9 * height / width + 0.35), layout="constrained")
    first, *others = figure.subplots(1, columns, squeeze=False)[0]
    _tile(first, ranking.query, "black", ranking.title)
    for axes, answer in zip(others, ranking.answers, strict=True):
        _tile(axes, answer.picture, COLORS[answer.right], answer.caption)
    save_figure(figure, path, dpi=100)


def _tile(axes: Any, picture: Picture, color: str, caption: str) -> None:
    axes.imshow(picture.squeeze(), cmap="gray", vmin=0, vmax=255)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(caption, fontsize=7, color=color, labelpad=2)
    for spine in axes.spines.values():
        spine.set(color=color, linewidth=3)
