"""Sections on a run that looks for people: lists that went well, and lists that went badly."""

import base64
import io

import numpy as np

from tammes.report.lists import Answer, List, draw_lists
from tammes.report.page import Section
from tammes.report.subject import Subject


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
    pairs = zip(pictures[1:], right.tolist(), strict=True)
    return List(title, pictures[0], [Answer(picture, kind == 1) for picture, kind in pairs if kind >= 0])


def _image(title: str, shown: list[List]) -> str:
    buffer = io.BytesIO()
    draw_lists(shown, buffer, "jpeg")  # a tenth of a PNG
    text = base64.b64encode(buffer.getvalue()).decode()
    return f'<div class="wide"><img alt="{title}" src="data:image/jpeg;base64,{text}"></div>'
