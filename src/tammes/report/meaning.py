"""What the numbers on a page mean, for those who have not read the paper."""

import math
from collections.abc import Sequence
from html import escape
from importlib import resources

from tammes.report.page import Section, figure
from tammes.report.subject import Subject

SHARES = {
    "Accuracy": ("accuracy", "The share of samples that are given to their own class."),
    "mAP": (
        "mAP",
        "A query ranks the images of a gallery by likeness. Its average precision is how much of the list is "
        "right up to each right image, in the mean; mAP is the mean over queries. Nobody in the lists was "
        "trained on, and images by the query's own camera do not count.",
    ),
    "Rank-1": ("rank1", "The share of queries whose first image is right."),
}
"""Name of a measure, its number, and what it is."""


def meaning(subjects: Sequence[Subject]) -> Section:
    """The measures, what each can be at most for these models, and why."""
    maxima = [maximum(s) for s in subjects]
    ceilings = [ceiling(s) for s in subjects if "sample_margin_ceiling" in s.numbers]
    measured = {name for s in subjects for name in s.numbers}
    terms = {name: [line] for name, (number, line) in SHARES.items() if number in measured}
    terms |= {
        "Class margin": [
            "The smallest angle between two prototypes: how far apart the two most alike classes are held. "
            "The more room between classes, the more a sample may differ from the typical one and still be "
            "recognised.",
            *dict.fromkeys(maxima),
        ],
    }
    if "sample_margin" in measured:
        terms["Sample margin"] = [
            "How safely one sample is recognised: its cosine with its own prototype less that with the "
            "nearest other one. Below 0 another class is nearer. The table shows the mean and the smallest.",
            *dict.fromkeys(ceilings),
        ]
    inner = "".join(
        f"<dt>{name}</dt>" + "".join(f"<dd>{escape(line)}</dd>" for line in lines)
        for name, lines in terms.items()
    )
    words = (
        "The network describes each sample by a direction, its embedding. Each class has a direction too, "
        "its prototype, and a sample is given to the class whose prototype is nearest. All that counts are "
        "the angles."
    )
    if any(s.sees_lengths for s in subjects):
        words += " " + LENGTHS
    drawing = resources.files("tammes.report").joinpath("meaning.svg").read_text(encoding="utf-8")
    picture = figure(drawing, "The angle between the prototypes is the class margin of these two classes.")
    return Section("What the numbers mean", words, f'<div class="charts"><dl>{inner}</dl>{picture}</div>')


LENGTHS = (
    "Not quite so where lengths count too, as with cross-entropy: then the class with the largest inner "
    "product is taken, and a few samples are right beyond the border, or wrong before it."
)


def maximum(s: Subject) -> str:
    """The largest class margin of so many directions in so many dimensions."""
    k, d, angle = len(s.classes), s.dimensions, s.numbers["class_margin_maximum_deg"]
    if s.never_negative:
        return f"At most: directions without negative entries are at most {angle:.2f}° apart."
    if s.numbers["maximum_is_exact"]:
        return f"At most: {k:,} directions in {d:,} dimensions can all be {angle:.2f}° apart, and no more."
    return (
        f"At most: {k:,} directions in {d:,} dimensions cannot all be more than {angle:.2f}° apart; the "
        "true maximum may be a little lower."
    )


def ceiling(s: Subject) -> str:
    """The ceiling of the mean sample margin, and which of its reasons applies (docs/errata, 14)."""
    k, value = len(s.classes), s.numbers["sample_margin_ceiling"]
    simplex = k / (k - 1)
    if math.isclose(value, simplex) and k > s.dimensions + 1:
        why = (
            f"k/(k−1) for k = {k:,}, a bound for every k; so many classes in {s.dimensions:,} dimensions "
            "stay below it"
        )
    elif math.isclose(value, simplex):
        why = f"k/(k−1) for k = {k:,}: every sample on its prototype, and these spread evenly"
    elif math.isclose(value, math.sqrt(simplex)):
        why = (
            f"not k/(k−1) = {simplex:.4f} but its root: the entries of these embeddings are never negative, "
            "as after a ReLU, so that no two embeddings are more than 90° apart"
        )
    elif value == 1:
        why = "embeddings and class means that are never negative have no cosine below 0"
    else:
        why = f"{k:,} classes share the sphere in {s.dimensions:,} dimensions, and each has that little of it"
    return f"At most, in the mean over classes of equal size: {value:.4f} ({why})."
