"""Appendix Table 7: two-stage methods on a long tail, with R_w in the first stage or in both.

Paper: ImageNet-LT, ResNet-50, MiSLAS's settings; R_w lifts CE from 43.61 to 45.90, cRT with mixup from 51.61
to 52.65, MiSLAS from 52.50 to 52.85 %. "lambda is set 100" may mean 100 R_w or, as in Table 2, 100 lambda =
10,000 R_w: both are rows. CE's prototypes have lengths, so R_w is of the raw ones (erratum 11). `paper` needs
the usual lists (ImageNet_LT_train.txt and _test.txt) and the images; `laptop` is CIFAR-10, long-tailed 100,
as in Table 2: MiSLAS's authors report 82.5 % there (ResNet-32, 200 epochs), Table 2's best row has 73.21.
Run: tammes reproduce table7 --rows ce-mixup mislas
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tammes.recipes import table2
from tammes.recipes.table import Row
from tammes.training.config import Config
from tammes.training.stages import CRT, LWS, MISLAS, TAU, Stage, after

READINGS = (100, 10_000)
"""What "lambda is set 100" may mean as a coefficient of R_w."""

PAPER: dict[str, Any] = {
    "model": "timm/resnet50",
    "image_size": 224,
    "objective": "CE",
    "optimizer": "sgd",
    "lr": 0.1,
    "weight_decay": 5e-4,
    "prototype_weight_decay": 5e-4,
    "batch_size": 256,
    "epochs": 180,
}
LAPTOP = ("cifar10", "long_tailed:100", "laptop")
"""The table whose CE is the first stage here too."""

MIXUP = {"paper": 0.2, "laptop": 1.0}
"""Of MiSLAS's published settings for ImageNet-LT and CIFAR-10-LT."""

SLOWED = {"paper": 0.05, "laptop": 0.5}
"""What its second stage multiplies the learning rate of the prototypes by: as published for the two."""

SHIFTED = {"paper": True, "laptop": False}
"""Whether its second stage shifts batch statistics: as published for the two."""


class Method(NamedTuple):
    """A row: what the first stage is called, what comes after it, where R_w is, what the paper calls it."""

    name: str
    label: str
    first: str
    stage: Stage | None = None
    both: bool = False
    paper: str = ""


def methods() -> Iterator[Method]:
    """First stages, then what is built on them."""
    ends = {"": "", **{f"+rw{c}": f" + {c} R_w" for c in READINGS}}
    for end, text in ends.items():
        printed = "CE+R_w" if end else "CE"
        yield Method(f"ce{end}", f"CE{text}", f"ce{end}", paper=printed)
        yield Method(f"ce-mixup{end}", f"CE, mixup{text}", f"ce-mixup{end}")
    for name, stage, paper in (("crt", CRT, "cRT*"), ("tau", TAU, ""), ("lws", LWS, "")):
        yield Method(name, NAMES[name], "ce", stage, paper=paper)
    for name, stage, first, paper in (
        ("crt-mixup", CRT, "ce-mixup", "cRT+mixup"),
        ("mislas", MISLAS, "ce-mixup", "MiSLAS"),
    ):
        yield Method(name, NAMES[name], first, stage, paper=paper)
        for c in READINGS:
            where = f"{paper}{'+ ' if paper == 'MiSLAS' else '+'}R_w (adding R_w for 1st stage)"
            label = f"{NAMES[name]}, {c} R_w"
            yield Method(f"{name}+rw{c}-1", f"{label} in stage 1", f"{first}+rw{c}", stage, paper=where)
            where = f"{paper}+R_w (adding R_w for 1st and 2nd stage)"
            yield Method(f"{name}+rw{c}-12", f"{label} in both", f"{first}+rw{c}", stage, True, where)


NAMES = {
    "crt": "cRT",
    "tau": "tau-normalisation",
    "lws": "LWS",
    "crt-mixup": "cRT, mixup",
    "mislas": "MiSLAS",
}


def rows(preset: str, *, data: str, data_root: str, runs: str) -> list[Row]:
    """Every row; a second stage starts from the run of its first one in the folder `runs`.

    >>> every = rows("laptop", data="", data_root="data", runs="runs")
    >>> every[-1].config.objective, every[-1].config.start
    ('LAS + 10000*R_w(normalize=False)', 'runs/cifar10-long_tailed-100-laptop-ce-mixup+rw10000')
    """
    return [_row(method, preset, data, data_root, Path(runs)) for method in methods()]


def prefix(preset: str) -> str:
    """What all keys begin with."""
    return "imagenet-lt-paper-" if preset == "paper" else table2.prefix(*LAPTOP)


def _row(method: Method, preset: str, data: str, data_root: str, runs: Path) -> Row:
    config = _first(method.first, preset, data, data_root)
    start, mixed = prefix(preset), "mixup" in method.first
    if method.stage is not None:
        own = _mislas(config, preset) if method.stage == MISLAS else {}
        config = after(config, method.stage, runs / f"{start}{method.first}", **own)
        config = dataclasses.replace(config, objective=_second(config, method))
    versus = "" if "+rw" not in method.name else method.name.partition("+rw")[0]
    return Row(
        key=start + method.name,
        label=method.label,
        config=config,
        paper=_printed(method.paper) if preset == "paper" else {},
        block="Mixup in the first stage" if mixed else "First stage as it is",
        versus=versus and start + versus,
    )


def _first(name: str, preset: str, data: str, data_root: str) -> Config:
    """The first stage called `name`: ce or ce-mixup, with +rw and a coefficient."""
    kind, _, strength = name.partition("+rw")
    changes: dict[str, Any] = {"objective": _with_raw_r_w("CE", strength), "data_root": data_root}
    if kind == "ce-mixup":
        changes["mixup"] = MIXUP[preset]
    if preset == "paper":
        return Config(data=data, **(PAPER | changes))
    return table2.config(*LAPTOP, **changes)


def _mislas(first: Config, preset: str) -> dict[str, Any]:
    """Its published settings; a learnable scale of each prototype, which it has besides, is left out."""
    assert first.lr is not None
    return {"shift_batch_norm": SHIFTED[preset], "prototype_lr": SLOWED[preset] * first.lr}


def _second(config: Config, method: Method) -> str:
    """The loss of the second stage, with R_w only where it is in both."""
    loss = config.objective.partition(" + ")[0]
    return _with_raw_r_w(loss, method.first.partition("+rw")[2] if method.both else "")


def _with_raw_r_w(loss: str, strength: str) -> str:
    return f"{loss} + {strength}*R_w(normalize=False)" if strength else loss


def _printed(name: str) -> dict[str, float]:
    cells = dict(table2.stored("table7")["rows"].get(name, {}))
    return {"accuracy" if column == "all" else column: value for column, value in cells.items()}


def notes(preset: str) -> list[str]:
    """What has to be said below the table."""
    if preset == "paper":
        return ['"lambda is set 100": rows for both coefficients of R_w that this may mean.']
    return [
        "Ours: CIFAR-10, long-tailed 100, fastnet-half, 40 epochs; the paper's Table 7 is of ImageNet-LT.",
        "MiSLAS here has no learnable scales of the prototypes.",
        "MiSLAS's authors report 82.5 here (ResNet-32, 200 epochs); Table 2's best single stage is 73.21.",
    ]
