"""Table 1 and appendix Table 5: balanced classification with and without the sample margin regulariser.

Paper: a large s costs class margin (CIFAR-10, NormFace: 96.3 deg at s = 5, 36.5 at s = 64), and 0.5 R_sm
brings it back (93.9) at the same accuracy. The appendix's settings are `paper`: SGD with momentum 0.9 and
decay 1e-4, cosine over 100, 200 or 250 epochs from 0.01 (MNIST) or 0.1, batches of 256. `laptop` keeps data
and objectives: on MNIST the same network for 10 epochs from 0.1, else a small fast one for 10 epochs.
Cost: each record has its seconds; laptop rows take minutes on a few cores, the paper's ResNets need GPUs.
Run: tammes reproduce table1 --dataset mnist
"""

import json
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

from tammes.recipes.table import Row
from tammes.training.config import Config

SCALES = (5, 10, 20, 40, 64)
LM_SCALES = (10, 20, 40, 64)
LOSSES = {
    "CosFace": "CosFace(s={s}, m=0.1)",
    "ArcFace": "ArcFace(s={s}, m=0.1)",
    "NormFace": "NormFace(s={s})",
}
R_SM = {"": "", "+0.5rsm": " + 0.5*R_sm", "+rsm": " + R_sm"}
"""End of a key to end of an objective."""

SGD: dict[str, Any] = {"optimizer": "sgd", "batch_size": 256, "weight_decay": 1e-4}
SGD |= {"prototype_weight_decay": SGD["weight_decay"]}  # the paper names one, so the prototypes have it too
PAPER: dict[str, dict[str, Any]] = {
    "mnist": {"model": "cnn4-hidden", "epochs": 100, "lr": 0.01},
    "cifar10": {"model": "resnet18", "epochs": 200, "lr": 0.1},
    "cifar100": {"model": "resnet34", "epochs": 250, "lr": 0.1},
    "tinyimagenet100": {"model": "resnet34", "epochs": 250, "lr": 0.1},
}
FAST: dict[str, Any] = {
    "model": "fastnet-half",
    "epochs": 10,
    "lr": 0.2,
    "schedule": "one-cycle",
    "nesterov": True,
    "weight_decay": 5e-4,
    "test_flip": True,
    "autocast": "bf16",
}
TENTH: dict[str, Any] = PAPER["mnist"] | {"epochs": 10, "lr": 0.1, "autocast": "bf16"}
"""A tenth of the epochs at ten times the rate: the steps add up to as much."""

LAPTOP: dict[str, dict[str, Any]] = {name: TENTH if name == "mnist" else FAST for name in PAPER}

NAMES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet100": "Tiny-ImageNet-100",
}
STAND_IN = "Tiny-ImageNet-100 stands in for CIFAR-100, of which its numbers say nothing."


class Variant(NamedTuple):
    """A row apart from data set and preset: the end of its key, and the settings that are its own."""

    name: str
    label: str
    block: str
    settings: dict[str, Any]
    versus: str = ""
    scale: int = 1


def variants() -> Iterator[Variant]:
    """The rows of appendix Table 5 in its order, then those that the figures need besides."""
    yield Variant("ce", "CE", "Cross-entropy", {"objective": "CE"})
    yield Variant("rsm", "R_sm", "Cross-entropy", {"objective": "R_sm"})
    yield Variant("ce+0.5rsm", "CE + 0.5 R_sm", "Cross-entropy", {"objective": "CE + 0.5*R_sm"}, "ce")
    for loss, text in LOSSES.items():
        block = loss if loss == "NormFace" else f"{loss}, m = 0.1"
        for end, term in R_SM.items():
            for s in SCALES:
                plain = f"{loss.lower()}-s{s}"
                label = f"{loss} (s={s}){term.replace('*', ' ')}"
                objective = {"objective": text.format(s=s) + term}
                yield Variant(plain + end, label, block, objective, plain if end else "", s)
    for s in LM_SCALES:
        settings = {"objective": f"LMSoftmax(s={s})"}
        block = "LM-Softmax (Figs. 5, 6)"
        yield Variant(f"lmsoftmax-s{s}", f"LM-Softmax (s={s})", block, settings)
    fixed = {"objective": "NormFace(s=10)", "prototype_init": "packed", "trainable_prototypes": False}
    label = "NormFace (s=10), prototypes fixed"
    yield Variant("normface-s10-fixed", label, "Fixed prototypes (Fig. 2)", fixed)


WIDE = Variant(
    "fastnet-normface-s10+0.5rsm",
    "NormFace (s=10) + 0.5 R_sm",
    "Full-width network",
    {"model": "fastnet", "objective": "NormFace(s=10) + 0.5*R_sm"},
)


def rows(dataset: str, preset: str, *, data_root: str = "data") -> list[Row]:
    """Every row of the table of one data set.

    >>> every = rows("mnist", "laptop")
    >>> len(every), every[2].key, every[2].config.objective, every[2].paper["class_margin_deg"]
    (53, 'mnist-laptop-ce+0.5rsm', 'CE + 0.5*R_sm', 95.41)
    """
    settings = SGD | (PAPER if preset == "paper" else LAPTOP)[dataset]
    wide = [WIDE] if settings["model"] == "fastnet-half" else []
    printed, start = paper(dataset), prefix(dataset, preset)
    found = []
    for variant in (*variants(), *wide):
        own = _rate(settings, variant.scale) | variant.settings
        config = Config(data=dataset, data_root=data_root, **(settings | own))
        found.append(
            Row(
                key=start + variant.name,
                label=variant.label,
                config=config,
                paper=printed.get(variant.name, {}),
                block=variant.block,
                versus=variant.versus and start + variant.versus,
            )
        )
    return found


def _rate(settings: dict[str, Any], scale: int) -> dict[str, Any]:
    """Gradients of softmax losses grow with s: the fast network's high rate would fling prototypes about.

    >>> _rate(FAST, 5), _rate(FAST, 20)
    ({'lr': 0.2}, {'lr': 0.1})
    """
    fast = settings["model"] == FAST["model"]
    return {"lr": min(settings["lr"], 2 / scale) if fast else settings["lr"]}


def prefix(dataset: str, preset: str) -> str:
    """What the keys of a data set's rows begin with."""
    return f"{dataset}-{preset}-"


def paper(dataset: str) -> dict[str, dict[str, float]]:
    """The printed numbers: for each row accuracy in per cent, class margin in degrees, mean sample margin."""
    text = resources.files("tammes.recipes").joinpath("paper/table1.json").read_text(encoding="utf-8")
    stored = json.loads(text)
    return {
        name: dict(zip(stored["columns"], sets[dataset], strict=True))
        for name, sets in stored["rows"].items()
        if dataset in sets
    }


def notes(dataset: str, preset: str) -> list[str]:
    """What has to be said below the table."""
    ours = (PAPER if preset == "paper" else LAPTOP)[dataset]
    scale = f"Ours: {ours['model']}, {ours['epochs']} epochs"
    theirs = PAPER[dataset]
    said = [f"{scale}; the paper's: {theirs['model']}, {theirs['epochs']} epochs."]
    if dataset == "tinyimagenet100":
        said = [f"{scale}. {STAND_IN}"]
    return said
