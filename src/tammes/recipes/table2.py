"""Table 2 and appendix Table 6: skewed classes with and without the zero-centroid regulariser R_w.

Paper: on skewed classes the losses have small class margins (LM-Softmax, long-tailed 100: 4.4 deg) and
lambda R_w brings them near the largest (92.6 of 96.4) with some accuracy (65.3 to 73.2 %). The appendix's
settings are `paper`: ResNet-18 or -34, SGD with momentum 0.9 and decay 2e-4, 200 epochs of cosine from 0.1,
batches of 128, s = 5. `laptop` keeps data and objectives: a small fast network, AdamW, 40 epochs.
R_w has the factor 100 lambda, of the unit prototypes (erratum 11). The paper's starred rows mostly take, for
each column, the lambda of the best test accuracy (erratum 13); `--choose` asks held-out training images.
Run: tammes reproduce table2 --imbalance long_tailed:100
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from tammes import checks
from tammes.data.imbalance import class_sizes, parse_imbalance
from tammes.losses import Objective, parse
from tammes.recipes.table import Row
from tammes.training.config import Config

LAMBDAS = (0, 1, 2, 5, 10, 20)
PLAIN = {"CE": "CE", "Focal": "Focal(gamma=1)"}
"""Losses of raw inner products, which the paper does not regularise here."""

LOSSES = {
    "CosFace": "CosFace(s=5, m=0.35)",
    "ArcFace": "ArcFace(s=5, m=0.1)",
    "NormFace": "NormFace(s=5)",
    "LDAM": "LDAM(s=5)",
    "LM-Softmax": "LMSoftmax(s=5)",
}
SMALLEST = {s: f'LMSoftmax(s={s}, reduction="lse")' for s in (5, 20)}
"""The reduction that the theory asks for where classes differ in size (erratum 2)."""

PAPER: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.1,
    "weight_decay": 2e-4,
    "prototype_weight_decay": 2e-4,
    "unit_prototypes": False,
    "epochs": 200,
}
LAPTOP: dict[str, Any] = {
    "model": "fastnet-half",
    "epochs": 40,
    "evaluate_every": 8,
    "autocast": "bf16",
}
"""AdamW, as usual: in so few steps it gets further than the paper's SGD. With bf16 where it pays."""
MODELS = {"cifar10": "resnet18", "cifar100": "resnet34", "tinyimagenet100": "resnet34"}
SIZES = {"cifar10": (5000, 10), "cifar100": (500, 100), "tinyimagenet100": (500, 100)}
"""Training images of a class, and classes."""

NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tinyimagenet100": "Tiny-ImageNet-100"}
KINDS = ("long_tailed:100", "long_tailed:10", "step:100", "step:10")
DRAWN = 10
"""The lambda of curves with R_w."""

HELD_OUT = 0.2
CHOSEN_BY = "mean_class_accuracy"
"""What decides among lambdas on held-out images, of which rare classes have few."""


class Variant(NamedTuple):
    """A row apart from data, imbalance and preset."""

    name: str
    label: str
    block: str
    objective: str
    versus: str = ""


def with_r_w(loss: str, strength: float) -> str:
    """`loss` with the paper's lambda: 100 lambda R_w.

    >>> with_r_w("NormFace(s=5)", 10)
    'NormFace(s=5) + 1000*R_w'
    """
    if checks.finite("lambda", strength) < 0:
        raise ValueError(f"lambda must not be negative, got {strength}.")
    return f"{loss} + {100 * strength:g}*R_w" if strength else loss


def variants() -> Iterator[Variant]:
    """The rows of appendix Table 6 in its order, then LM-Softmax for the smallest margin."""
    for loss, text in PLAIN.items():
        yield Variant(loss.lower(), loss, "Raw inner products", text)
    for loss, text in LOSSES.items():
        yield from _over(LAMBDAS, name_of(loss), loss, loss, text)
    for s, text in SMALLEST.items():
        label = f"LM-Softmax lse (s={s})"
        yield from _over((0, 10), f"lse-s{s}", label, "LM-Softmax by its smallest margin", text)


def _over(strengths: Sequence[int], name: str, label: str, block: str, text: str) -> Iterator[Variant]:
    for strength in strengths:
        versus = f"{name}-0" if strength else ""
        line = f"{label} (lambda={strength})"
        yield Variant(f"{name}-{strength}", line, block, with_r_w(text, strength), versus)


def name_of(loss: str) -> str:
    """What keys call a loss.

    >>> name_of("LM-Softmax")
    'lmsoftmax'
    """
    return loss.lower().replace("-", "")


def counts(dataset: str, imbalance: str) -> tuple[int, ...]:
    """Training images of each class."""
    most, classes = SIZES[dataset]
    return class_sizes(most, classes, **dataclasses.asdict(parse_imbalance(imbalance)))


def rows(dataset: str, imbalance: str, preset: str, *, data_root: str = "data") -> list[Row]:
    """Every row of the table of one data set and imbalance.

    >>> every = rows("cifar10", "long_tailed:100", "laptop")
    >>> len(every), every[-5].key, every[-5].paper
    (36, 'cifar10-long_tailed-100-laptop-lmsoftmax-20', {'accuracy': 73.2, 'class_margin_deg': 91.95})
    """
    start, printed = prefix(dataset, imbalance, preset), paper(dataset, imbalance)
    return [
        Row(
            key=start + variant.name,
            label=variant.label,
            config=config(dataset, imbalance, preset, objective=variant.objective, data_root=data_root),
            paper=printed.get(variant.name, {}),
            block=variant.block,
            versus=variant.versus and start + variant.versus,
        )
        for variant in variants()
    ]


def config(dataset: str, imbalance: str, preset: str, **settings: Any) -> Config:
    """The run of one row."""
    usual: dict[str, Any] = PAPER | {"model": MODELS[dataset]} if preset == "paper" else LAPTOP
    return Config(data=dataset, imbalance=imbalance, **(usual | settings))


def prefix(dataset: str, imbalance: str, preset: str) -> str:
    """What the keys of a table's rows begin with."""
    return f"{dataset}-{str(parse_imbalance(imbalance)).replace(':', '-')}-{preset}-"


def held_out(every: Sequence[Row]) -> list[Row]:
    """`every` row trained on four fifths of its training images and judged by the others."""
    return [
        dataclasses.replace(
            row,
            key=f"{row.key}-held-out",
            config=dataclasses.replace(row.config, hold_out=HELD_OUT),
            paper={},
            versus=row.versus and f"{row.versus}-held-out",
        )
        for row in every
    ]


def stored(name: str) -> dict[str, Any]:
    """The paper's numbers of the table in paper/NAME.json."""
    text = resources.files("tammes.recipes").joinpath(f"paper/{name}.json").read_text(encoding="utf-8")
    return json.loads(text)


def paper(dataset: str, imbalance: str) -> dict[str, dict[str, float]]:
    """The printed numbers of appendix Table 6: accuracy in per cent, class margin in degrees."""
    setting, found = f"{dataset} {imbalance}", {}
    for loss, by_lambda in stored("table6")["rows"].items():
        for strength, cells in by_lambda.items():
            if setting in cells:
                name = loss.lower() if loss in PLAIN else f"{name_of(loss)}-{strength}"
                found[name] = dict(zip(("accuracy", "class_margin_deg"), cells[setting], strict=True))
    return found


def with_and_without(start: str) -> dict[str, str]:
    """Labels and keys of Fig. 7: each loss without R_w and at one lambda."""
    return {
        f"{loss} (lambda={strength})": f"{start}{name_of(loss)}-{strength}"
        for loss in LOSSES
        for strength in (0, DRAWN)
    }


def over_lambda(start: str, loss: str) -> dict[str, str]:
    """The keys of a loss for every lambda, as in Figs. 8 and 12 to 16."""
    return {f"lambda = {strength}": f"{start}{name_of(loss)}-{strength}" for strength in LAMBDAS}


class Choice(NamedTuple):
    """Which lambda held-out images choose for a loss, and which the test images would."""

    loss: str
    by_held_out: int
    by_test: int
    complete: bool  # whether every lambda has both runs


def choices(start: str, records: Mapping[str, Mapping[str, Any]]) -> list[Choice]:
    """The lambda of each loss by held-out mean class accuracy, and by test accuracy, of those that were run.

    Args:
        start: what the keys begin with.
        records: of the rows and of their `held_out` twins, under their keys.
    """
    found = []
    for loss in LOSSES:
        held = _scores(records, f"{start}{name_of(loss)}-{{}}-held-out", CHOSEN_BY)
        test = _scores(records, f"{start}{name_of(loss)}-{{}}", "accuracy")
        if held and test:
            whole = len(held) == len(test) == len(LAMBDAS)
            found.append(
                Choice(loss, max(held, key=held.__getitem__), max(test, key=test.__getitem__), whole)
            )
    return found


def _scores(records: Mapping[str, Mapping[str, Any]], key: str, metric: str) -> dict[int, float]:
    """A metric by lambda; the smaller lambda comes first, so that it wins a tie."""
    there = {strength: records.get(key.format(strength)) for strength in LAMBDAS}
    return {s: r["metrics"][metric] for s, r in there.items() if r is not None and "metrics" in r}


def objective(loss: str, strength: float) -> Objective:
    """A loss of the table with its R_w."""
    return parse(with_r_w((PLAIN | LOSSES)[loss], strength))


def notes(dataset: str, preset: str) -> list[str]:
    """What has to be said below the table."""
    ours = config(dataset, "long_tailed:100", preset)
    said = [f"Ours: {ours.model}, {ours.epochs} epochs; the paper's: {MODELS[dataset]}, 200 epochs."]
    if dataset == "tinyimagenet100":
        said = [f"Ours: {ours.model}, {ours.epochs} epochs. The paper has no such table."]
    return [*said, "The paper's numbers are appendix Table 6's; Table 2 differs for CE (erratum 13)."]


def starred() -> tuple[int, int]:
    """How many of Table 2's starred entries have the best test accuracy over lambda, and of how many.

    >>> starred()
    (35, 40)
    """
    table2, table6 = stored("table2")["rows"], stored("table6")["rows"]
    best = [
        table2[f"{loss}*"][setting][0] == max(table6[loss][str(s)][setting][0] for s in LAMBDAS if s)
        for loss in LOSSES
        for setting in stored("table2")["settings"]
    ]
    return sum(best), len(best)
