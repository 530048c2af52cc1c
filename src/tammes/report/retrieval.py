"""Sections on runs that look for people: their numbers, and lists that went well and badly."""

import base64
import io
from collections.abc import Sequence

import numpy as np

from tammes.report.lists import Answer, List, draw_lists
from tammes.report.page import Section, wide
from tammes.report.subject import Subject
from tammes.report.tables import Cell, Grid

COLUMNS = {
    "mAP": "mAP %",
    "rank1": "rank-1 %",
    "rank5": "rank-5 %",
    "rank10": "rank-10 %",
    "mINP": "mINP %",
}


def looks_for_people(s: Subject) -> bool:
    """Whether the run was measured by retrieval."""
    return "mAP" in s.numbers


def lead(subjects: Sequence[Subject]) -> str:
    """The page in a sentence or two."""
    best = max(subjects, key=lambda s: s.numbers["mAP"])
    of = "" if len(subjects) == 1 else f" of {len(subjects)} runs, {best.label} does best:"
    queries = int((best.arrays["first_rank"] > 0).sum())
    return (
        f"On {best.data}{of} the mean average precision over {queries:,} queries is "
        f"{100 * best.numbers['mAP']:.2f} %, and for {100 * best.numbers['rank1']:.2f} % of them the first "
        "image of the list shows the right person, by another camera. None of these people was trained on."
    )


def results(subjects: Sequence[Subject]) -> Section:
    """A line for each run."""
    lines = [
        [
            Cell(s.name),
            Cell(s.record.get("config", {}).get("objective", "")),
            *(Cell(f"{100 * s.numbers[name]:.2f}") for name in COLUMNS),
            Cell(f"{s.numbers['class_margin_deg']:.2f}"),
            Cell(f"{s.numbers['class_margin_maximum_deg']:.2f}"),
        ]
        for s in subjects
    ]
    heads = ("run", "objective", *COLUMNS.values(), "class margin °", "at most °")
    words = (
        "mAP: the mean over queries of how much of the list, up to each right image, is right. Rank-k: the "
        "share of queries with a right image among the first k. mINP: right images over the place of the "
        "last of them. Class margin: the smallest angle between the prototypes of two people trained on."
    )
    return Section("Results", words, wide(Grid("", heads, [("", lines)], words=2)))


def lists(s: Subject) -> list[Section]:
    """The lists with the largest and the smallest average precision, as pictures."""
    if "example_picture" not in s.arrays:
        return []
    chosen, pictures, right = (s.arrays[f"example{end}"] for end in ("", "_picture", "_right"))
    half = (len(chosen) + 1) // 2
    precision, first = s.arrays["average_precision"][chosen], s.arrays["first_rank"][chosen]
    shown = [
        _list(pictures[i], right[i], f"AP {100 * precision[i]:.0f} %\nfirst: {first[i]}")
        for i in range(len(chosen))
    ]
    words = {
        "Easy queries": "The queries with the best lists. Left the query, then the ten images most like it, "
        "in green frames where they show the same person, in red ones where they do not.",
        "Hard queries": "The queries with the worst lists. Below each stands its average precision, and the "
        "place of the first right image.",
    }
    parts = dict(zip(words, (shown[:half], shown[half:]), strict=True))
    return [Section(title, words[title], _image(title, part)) for title, part in parts.items() if part]


def _list(pictures: np.ndarray, right: np.ndarray, title: str) -> List:
    answers = [Answer(picture, bool(is_right)) for picture, is_right in zip(pictures[1:], right, strict=True)]
    return List(title, pictures[0], answers)


def _image(title: str, shown: list[List]) -> str:
    buffer = io.BytesIO()
    draw_lists(shown, buffer, "jpeg")  # a tenth of a PNG
    text = base64.b64encode(buffer.getvalue()).decode()
    return f'<div class="wide"><img alt="{title}" src="data:image/jpeg;base64,{text}"></div>'
