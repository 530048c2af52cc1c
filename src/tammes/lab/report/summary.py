"""Summary of a page: how good each model is, and how close to the largest margins."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tammes.lab.report.accuracy_comparison import accuracy_interval, difference
from tammes.lab.report.charts import color
from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section
from tammes.lab.report.templating import number, render
from tammes.lab.report.worst_classes import worst_first
from tammes.metrics._example_samples import confused_pairs


class Margin(NamedTuple):
    """A measure, and the one it cannot exceed."""

    title: str
    key: str
    maximum: str
    digits: int
    unit: str


MARGIN_BARS = (
    Margin("Class margin", "class_margin_deg", "class_margin_maximum_deg", 2, "°"),
    Margin("Mean sample margin", "sample_margin", "sample_margin_ceiling", 4, ""),
)


def lead(models: Sequence[ModelResults]) -> str:
    """The summary in a few sentences."""
    if len(models) == 1:
        return one_model(models[0])
    sets = list(dict.fromkeys(model.data for model in models))
    if len(sets) > 1:
        return f"{len(models)} models on {len(sets)} data sets. Only models on the same data are comparable."
    return f"{len(models)} models on {sets[0]}. {_best(models)}"


def one_model(model: ModelResults) -> str:
    """How good one model is, and where it fails most."""
    numbers, said = model.numbers, []
    if "mAP" in numbers:
        said.append(f"{model.name} retrieves people with a mAP of {100 * numbers['mAP']:.2f} %.")
    if "accuracy" in numbers:
        said.append(
            f"{model.name} classifies {100 * numbers['accuracy']:.2f} % of {model.samples:,} samples of "
            f"{len(model.classes):,} classes correctly{_interval_text(model)}."
        )
        said += _weakest(model)
    return " ".join(said) or f"{model.name} has a class margin of {numbers['class_margin_deg']:.2f}°."


def _weakest(model: ModelResults) -> list[str]:
    """The class with the lowest accuracy, and the most frequent mistake if there is one that repeats."""
    if model.correct.all():
        return []
    accuracy = model.arrays["class_accuracy"]
    worst = worst_first(model)[0]
    (truth, given), times = confused_pairs(model.arrays["label"], model.arrays["prediction"])[0]
    said = [f"Weakest class: {model.classes[worst]} ({100 * accuracy[worst]:.1f} %)."]
    if times > 1:
        said.append(
            f"Most frequent mistake: {model.classes[truth]} taken for {model.classes[given]} ({times:,} of "
            f"{int((model.arrays['label'] == truth).sum()):,})."
        )
    return said


def margins_in_words(model: ModelResults) -> str:
    """Class margin and mean sample margin of one model, each with its maximum."""
    numbers = model.numbers
    found, maximum = numbers["class_margin_deg"], numbers["class_margin_maximum_deg"]
    pair = f", {' and '.join(model.closest_pair())}," if "nearest_angle" in model.arrays else ""
    of = "maximum" if numbers["maximum_is_exact"] else "upper bound"
    said = (
        f"The two closest classes{pair} are {found:.2f}° apart: {_percent(found, maximum)} of "
        f"the {of}, {maximum:.2f}° for {len(model.classes):,} {_directions(model)}."
    )
    if "sample_margin" not in numbers:
        return said
    mean, ceiling = numbers["sample_margin"], numbers["sample_margin_ceiling"]
    return said + (
        f" The mean sample margin is {number(mean, 4)}, {_percent(mean, ceiling)} of the {ceiling:.4f} "
        "possible for classes of equal size."
    )


def _interval_text(model: ModelResults) -> str:
    interval = accuracy_interval(model)
    if interval is None:
        return ""
    return f" (95 % confidence interval {100 * interval.low:.1f} to {100 * interval.high:.1f} %)"


def _directions(model: ModelResults) -> str:
    if model.nonnegative_prototypes:
        return "directions without negative entries"
    return f"directions in {model.dimensions:,} dimensions"


def _share(value: float, maximum: float) -> float:
    """In percent; 100 if both are zero, as for three classes in one dimension."""
    return 100 * value / maximum if maximum else 100.0


def _percent(value: float, maximum: float) -> str:
    return f"{number(_share(value, maximum), 1)} %"


def _best(models: Sequence[ModelResults]) -> str:
    """The best model by each measure, and the models that do not differ from it significantly."""
    said = []
    if all("mAP" in model.numbers for model in models):
        first = max(models, key=lambda model: model.numbers["mAP"])
        said.append(f"Highest mAP: {first.label} ({100 * first.numbers['mAP']:.2f} %).")
    if all("accuracy" in model.numbers for model in models):
        said += _best_accuracy(models)
    for margin in MARGIN_BARS:
        if all(margin.key in model.numbers for model in models):
            first = max(models, key=lambda model: model.numbers[margin.key])
            found, maximum = (
                f"{number(first.numbers[key], margin.digits)}{margin.unit}"
                for key in (margin.key, margin.maximum)
            )
            said.append(f"Largest {margin.title.lower()}: {first.label} ({found} of at most {maximum}).")
    return " ".join(said)


def _best_accuracy(models: Sequence[ModelResults]) -> list[str]:
    best = max(models, key=lambda model: model.numbers["accuracy"])
    name = f"{best.label} ({100 * best.numbers['accuracy']:.2f} %)"
    others = [(other, difference(best, other)) for other in models if other is not best]
    same = [(other, gap) for other, gap in others if gap is not None and not gap.significant]
    if not same:
        return [f"Highest accuracy: {name}."]
    at_most = "at most " if len(same) > 1 else ""
    apart = f"{at_most}{max(gap.images for _, gap in same):,} of {same[0][1].samples:,} images"
    if len(same) == len(others):
        return [f"No difference in accuracy: the best, {name}, is {apart} ahead."]
    names = ", ".join(f"“{other.label}”" for other, _ in same)
    return [f"Highest accuracy: {name}; no difference to {names}, {apart} behind."]


def margin_shares(models: Sequence[ModelResults]) -> Section:
    """Both margins as bars, relative to their maxima."""
    groups = [
        {"title": margin.title, "bars": [_bar(run, model, margin) for run, model in enumerate(models)]}
        for margin in MARGIN_BARS
        if all(margin.key in model.numbers for model in models)
    ]
    text = (
        "Full bar: the largest class margin possible for k classes in d dimensions, or an upper bound where "
        "the maximum is unknown; for sample margins, the largest mean possible for classes of equal size."
    )
    if len(models) == 1:
        text = f"{margins_in_words(models[0])}\n\n{text}"
    return Section("Margins, relative to the maximum", text, render("margin_shares.html", groups=groups))


def _bar(run: int, model: ModelResults, margin: Margin) -> dict[str, Any]:
    found, maximum = model.numbers[margin.key], model.numbers[margin.maximum]
    return {
        "name": model.label,
        "share": min(100.0, max(0.0, _share(found, maximum))),
        "color": color(run),
        "text": f"{_percent(found, maximum)} of {maximum:.{margin.digits}f}{margin.unit}",
    }
