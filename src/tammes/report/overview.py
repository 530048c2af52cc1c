"""The first sections of a page: how good, what that means, how close to the best, how it came about."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from tammes.report.charts import Curve, colour, line_chart
from tammes.report.page import Section, figure, wide
from tammes.report.subject import Subject
from tammes.report.tables import Cell, Column, Grid

COLUMNS = (
    Column("acc %", "accuracy", 2, 100.0),
    Column("mAP %", "mAP", 2, 100.0),
    Column("rank-1 %", "rank1", 2, 100.0),
    Column("class margin °", "class_margin_deg", 2),
    Column("at most °", "class_margin_maximum_deg", 2),
    Column("sample margin", "sample_margin", 4),
    Column("at most", "sample_margin_ceiling", 4),
    Column("smallest", "gamma_min", 4),
)


class Margin(NamedTuple):
    """A measure, and the one that it cannot exceed."""

    title: str
    value: str
    most: str
    digits: int
    unit: str


MARGINS = (
    Margin("Class margin", "class_margin_deg", "class_margin_maximum_deg", 2, "°"),
    Margin("Mean sample margin", "sample_margin", "sample_margin_ceiling", 4, ""),
)

CURVES = (
    ("accuracy", "accuracy, %", 100.0, None),
    ("mAP", "mAP, %", 100.0, None),
    ("class_margin_deg", "class margin, °", 1.0, "class_margin_maximum_deg"),
    ("sample_margin", "mean sample margin", 1.0, "sample_margin_ceiling"),
    ("loss", "loss of the last batch", 1.0, None),
)
"""Number of an epoch, title, factor, and the number that it cannot exceed."""


def lead(subjects: Sequence[Subject]) -> str:
    """The page in a few sentences."""
    if len(subjects) == 1:
        return in_words(subjects[0])
    sets = list(dict.fromkeys(s.data for s in subjects))
    on = sets[0] if len(sets) == 1 else f"{len(sets)} data sets, which are kept apart"
    aim = f"{len(subjects)} models on {on}: how well each tells the classes apart, and how well it could."
    return f"{aim} {_best(subjects)}" if len(sets) == 1 else aim


def _best(subjects: Sequence[Subject]) -> str:
    """Which of the models have the most of each."""
    said = []
    if all("mAP" in s.numbers for s in subjects):
        found = max(subjects, key=lambda s: s.numbers["mAP"])
        said.append(f"The best lists are those of {found.label} (mAP {100 * found.numbers['mAP']:.2f} %).")
    if all("accuracy" in s.numbers for s in subjects):
        most = max(s.numbers["accuracy"] for s in subjects)
        right = [s.label for s in subjects if s.numbers["accuracy"] == most]
        said.append(f"Most often right: {', '.join(right)} ({100 * most:.2f} %).")
    for margin in MARGINS:
        if all(margin.value in s.numbers for s in subjects):
            first = max(subjects, key=lambda s: s.numbers[margin.value])
            said.append(f"Largest {margin.title.lower()}: {first.label} ({_of_most(first, margin)}).")
    return " ".join(said)


def _of_most(s: Subject, margin: Margin) -> str:
    found, most = (
        f"{s.numbers[name]:.{margin.digits}f}{margin.unit}" for name in (margin.value, margin.most)
    )
    return f"{found} of at most {most}".replace("-", "−")


def in_words(s: Subject) -> str:
    """Accuracy and both margins of one model, each with its maximum."""
    numbers, k = s.numbers, len(s.classes)
    found, most = numbers["class_margin_deg"], numbers["class_margin_maximum_deg"]
    of = "what is possible" if numbers["maximum_is_exact"] else "a bound that may be out of reach"
    which = f"{k:,} directions " + (
        "without negative entries" if s.never_negative else f"in {s.dimensions:,} dimensions"
    )
    said = [
        f"The two classes it holds closest together{_closest(s)} are {found:.2f}° apart; no {which} are all "
        f"more than {most:.2f}° apart, so this is {_percent(found, most)} of {of}."
    ]
    if "accuracy" in numbers:
        right = f"{100 * numbers['accuracy']:.2f} % of {s.samples:,} samples of {k:,} classes"
        said.insert(0, f"{s.name} is right on {right}.")
    if "mAP" in numbers:
        said.insert(0, f"{s.name} finds people again with a mAP of {100 * numbers['mAP']:.2f} %.")
    if "sample_margin" in numbers:
        mean, ceiling = numbers["sample_margin"], numbers["sample_margin_ceiling"]
        share = f"{_percent(mean, ceiling)} of the {ceiling:.4f} that classes of equal size allow"
        said.append(f"The mean sample margin is {mean:.4f}, {share}.".replace("-", "−"))
    return " ".join(said)


def _closest(s: Subject) -> str:
    return f", {' and '.join(s.closest())}," if "nearest_angle" in s.arrays else ""


def _percent(value: float, most: float) -> str:
    return f"{100 * value / most:.1f} %".replace("-", "−")


def results(subjects: Sequence[Subject]) -> Section:
    """A line for each model, data sets apart."""
    columns = [c for c in COLUMNS if any(c.metric in s.numbers for s in subjects)]
    blocks: dict[str, list[list[Cell]]] = {}
    for s in subjects:
        words = [s.name, s.record.get("config", {}).get("objective", "")]
        numbers = [_number(s, column) for column in columns]
        blocks.setdefault(s.data, []).append([Cell(text) for text in (*words, *numbers)])
    headed = [(name if len(blocks) > 1 else "", body) for name, body in blocks.items()]
    grid = Grid("", ["", "objective", *(c.title for c in columns)], headed, words=2)
    apart = " Models on different data cannot be compared with each other." if len(blocks) > 1 else ""
    trained = all(s.epochs for s in subjects)
    where = "Measured on samples that were not trained on, unless noted otherwise." if trained else ""
    return Section("Results", f"{where}{apart}", wide(grid))


def _number(s: Subject, column: Column) -> str:
    value = s.numbers.get(column.metric)
    return "" if value is None else f"{column.factor * value:.{column.digits}f}".replace("-", "−")


def closeness(subjects: Sequence[Subject]) -> Section:
    """Both margins as shares of what is possible."""
    parts = []
    for margin in MARGINS:
        bars = [_bar(run, s, margin) for run, s in enumerate(subjects) if margin.value in s.numbers]
        if bars:
            parts.append(f'<h3>{margin.title}</h3><div class="bars">{"".join(bars)}</div>')
    words = (
        "A full bar is the largest margin that so many classes in so many dimensions can have, or where that "
        "is not known a bound of it; for sample margins, with classes of equal size."
    )
    return Section("How close to the largest margins", words, "".join(parts))


def _bar(run: int, s: Subject, margin: Margin) -> str:
    found, most = s.numbers[margin.value], s.numbers[margin.most]
    share = min(100.0, max(0.0, 100 * found / most))
    return (
        f'<div class="row"><span>{escape(s.label)}</span><span class="bar"><i style="width:{share:.1f}%;'
        f'background:{colour(run)}"></i></span><span class="value">{_percent(found, most)} of '
        f"{most:.{margin.digits}f}{margin.unit}</span></div>"
    )


def curves(subjects: Sequence[Subject]) -> list[Section]:
    """How accuracy, margins and loss went, where there is a history."""
    trained = [(run, s) for run, s in enumerate(subjects) if s.epochs]
    if not trained:
        return []
    charts = []
    for key, title, factor, limit in CURVES:
        shown = [(run, s) for run, s in trained if any(key in epoch for epoch in s.epochs)]
        limits = sorted({round(s.numbers[limit], 6) for _, s in shown if limit and limit in s.numbers})
        lines = [_history(run, s, key, factor) for run, s in shown]
        charts += [figure(line_chart(title, lines, limits=limits))] if lines else []
    keys = "".join(
        f'<button data-run="{run}" aria-pressed="true"><i style="background:{colour(run)}"></i>'
        f"{escape(s.label)}</button>"
        for run, s in trained
    )
    words = (
        "After each epoch, on samples that are not trained on; the loss is that of the last training batch. "
        "Dashed: what cannot be exceeded."
    )
    body = f'<div class="controls legend">{keys}</div><div class="charts">{"".join(charts)}</div>'
    return [Section("How it came about", words, body)]


def _history(run: int, s: Subject, key: str, factor: float) -> Curve:
    values = [factor * epoch.get(key, math.nan) for epoch in s.epochs]
    return Curve(s.name, run, [epoch["epoch"] + 1 for epoch in s.epochs], values)
