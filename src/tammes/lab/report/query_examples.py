"""Queries of a person re-identification run: the best and the worst rankings, as photos."""

import numpy as np

from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section
from tammes.lab.report.templating import render
from tammes.lab.report.thumbnails import data_url

TEXTS = {
    "Easy queries": "The queries with the best rankings. On the left the query, then the ten most similar "
    "images: green frames show the same person, red frames somebody else.",
    "Hard queries": "The queries with the worst rankings. Under each: its average precision and the rank of "
    "the first correct image.",
}


def query_examples(model: ModelResults) -> list[Section]:
    """The queries with the highest and the lowest average precision, each with the top of its ranking."""
    if "example_picture" not in model.arrays:
        return []
    chosen, pictures, right = (model.arrays[f"example{end}"] for end in ("", "_picture", "_right"))
    precision, first = model.arrays["average_precision"][chosen], model.arrays["first_rank"][chosen]
    rankings = [
        {
            "query": data_url(pictures[i][0]),
            "caption": f"AP {100 * precision[i]:.0f} %, first: {first[i]}",
            "answers": _answers(pictures[i][1:], right[i]),
        }
        for i in range(len(chosen))
    ]
    half = (len(chosen) + 1) // 2
    parts = dict(zip(TEXTS, (rankings[:half], rankings[half:]), strict=True))
    return [
        Section(title, TEXTS[title], render("rankings.html", rankings=part))
        for title, part in parts.items()
        if part
    ]


def _answers(pictures: np.ndarray, right: np.ndarray) -> list[tuple[str, bool]]:
    """Picture and correctness of each answer; -1 marks places beyond the end of a short ranking."""
    pairs = zip(pictures, right.tolist(), strict=True)
    return [(data_url(picture), kind == 1) for picture, kind in pairs if kind >= 0]
