"""Glossary of the measures on a page, for readers who have not read the paper."""

import math
from collections.abc import Sequence

from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section
from tammes.lab.report.templating import render

MEASURES = {
    "Accuracy": ("accuracy", "The fraction of samples assigned to their true class."),
    "mAP": (
        "mAP",
        "Each query ranks the images of a gallery by similarity. Its average precision is the mean, over the "
        "correct images, of the share of correct images up to and including that one; mAP is the mean over "
        "queries. Gallery identities are unseen in training; images from the query's camera are excluded.",
    ),
    "Rank-1": ("rank1", "The share of queries whose top-ranked image is correct."),
    "ECE": (
        "ece",
        "Expected calibration error: the average gap between the predicted probability of an answer and how "
        "often such answers are correct.",
    ),
}
"""Name of a measure, its key in the numbers, and its definition."""

NORMS = (
    "With losses that use vector lengths, such as cross-entropy, this is approximate: the class with the "
    "largest inner product wins, so a few samples with a negative margin are correct, and vice versa."
)


def glossary(models: Sequence[ModelResults]) -> Section:
    """The measures, and the maximum of each for these models with its origin."""
    measured = {key for model in models for key in model.numbers}
    terms = {name: [text] for name, (key, text) in MEASURES.items() if key in measured}
    terms["Class margin"] = [
        "The smallest angle between two prototypes: the separation of the two most similar classes. The "
        "larger it is, the more a sample can deviate from its prototype and still be classified correctly.",
        *dict.fromkeys(maximum(model) for model in models),
    ]
    if "sample_margin" in measured:
        ceilings = [ceiling(model) for model in models if "sample_margin_ceiling" in model.numbers]
        terms["Sample margin"] = [
            "How confidently a sample is classified: its cosine with its own prototype minus that with the "
            "nearest other one. Below 0, another class is nearer. The table shows the mean and the smallest.",
            *dict.fromkeys(ceilings),
        ]
    text = (
        "The network maps each sample to a direction, its embedding. Each class has a direction too, its "
        "prototype, and a sample is assigned to the class whose prototype is nearest. Only angles matter."
    )
    if any(model.uses_norms for model in models):
        text += " " + NORMS
    return Section("What the numbers mean", text, render("glossary.html", terms=terms))


def maximum(model: ModelResults) -> str:
    """The largest class margin possible for k classes in d dimensions."""
    k, d, angle = len(model.classes), model.dimensions, model.numbers["class_margin_maximum_deg"]
    if model.nonnegative_prototypes:
        return f"Maximum: directions without negative entries are at most {angle:.2f}° apart."
    if model.numbers["maximum_is_exact"]:
        return f"Maximum: {k:,} directions in {d:,} dimensions can all be {angle:.2f}° apart, but no more."
    return (
        f"Upper bound: {k:,} directions in {d:,} dimensions cannot all be more than {angle:.2f}° apart; the "
        "true maximum may be slightly lower."
    )


def ceiling(model: ModelResults) -> str:
    """The maximum of the mean sample margin, and the applicable reason (docs/errata, 14)."""
    k, d, value = len(model.classes), model.dimensions, model.numbers["sample_margin_ceiling"]
    simplex = k / (k - 1)
    if math.isclose(value, simplex) and k > d + 1:
        why = f"k/(k−1) for k = {k:,}, a bound that {k:,} classes in {d:,} dimensions do not reach"
    elif math.isclose(value, simplex):
        why = f"k/(k−1) for k = {k:,}: every sample on its prototype, and the prototypes spread evenly"
    elif math.isclose(value, math.sqrt(simplex)):
        why = (
            f"not k/(k−1) = {simplex:.4f} but its square root: these embeddings have no negative entries, as "
            "after a ReLU, so no two of them are more than 90° apart"
        )
    elif value == 1:
        why = "embeddings and class means without negative entries have no cosine below 0"
    else:
        why = f"{k:,} classes share the sphere in {d:,} dimensions, which limits the room of each"
    return f"Maximum of the mean, for classes of equal size: {value:.4f} ({why})."
