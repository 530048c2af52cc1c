"""Pictures of what a search finds: a query and its list, right ones framed green, wrong ones red."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

Picture = UInt8[np.ndarray, "h w c"]

COLOURS = {True: "#1a8f3c", False: "#d0342c", None: "#8a8a8a"}


class Answer(NamedTuple):
    """One place of a list: what is shown, whether it is right (None where nobody knows), a word below it."""

    picture: Picture
    right: bool | None
    word: str = ""


class List(NamedTuple):
    """A query with its answers, the best first."""

    title: str
    query: Picture
    answers: Sequence[Answer]


def draw_lists(lists: Sequence[List], target: Path | io.BytesIO, form: str = "png") -> None:
    """All lists below each other as one picture: the query in black, then its answers in their frames."""
    from matplotlib.figure import Figure

    columns = 1 + max(len(one.answers) for one in lists)
    height, width = lists[0].query.shape[:2]
    figure = Figure(
        figsize=(0.95 * columns, (0.9 * height / width + 0.35) * len(lists)), layout="constrained"
    )
    grid = figure.subplots(len(lists), columns, squeeze=False)
    for axes, one in zip(grid, lists, strict=True):
        _tile(axes[0], one.query, "black", one.title)
        for place, tile in enumerate(axes[1:]):
            if place < len(one.answers):
                answer = one.answers[place]
                _tile(tile, answer.picture, COLOURS[answer.right], answer.word)
            else:
                tile.axis("off")
    figure.savefig(target, dpi=100, format=form)


def _tile(axes, picture: Picture, colour: str, word: str) -> None:
    axes.imshow(picture.squeeze(), cmap="gray", vmin=0, vmax=255)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(word, fontsize=7, color=colour, labelpad=2)
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=3)
