"""Appendix Table 7: two-stage methods on long-tailed data, with R_w in the first stage or in both.

Paper: ImageNet-LT, ResNet-50, MiSLAS's settings; R_w lifts CE from 43.61 to 45.90, cRT with mixup from 51.61
to 52.65, MiSLAS from 52.50 to 52.85 %. "lambda is set 100" may mean 100 R_w or, as in Table 2, 100 lambda =
10,000 R_w: both are rows. CE does not normalize its prototypes, so R_w is on the raw ones (erratum 11). The
`paper` preset needs the usual lists (ImageNet_LT_train.txt and _test.txt) and the images; `laptop` is
CIFAR-10, long-tailed 100, as in Table 2: MiSLAS's authors report 82.5 % there (ResNet-32, 200 epochs), Table
2's best row has 73.21.
Run: tammes reproduce table7 --rows ce-mixup mislas
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from tammes.lab.recipes import table2
from tammes.lab.recipes.table import EACH_EPOCH, Preset, Row, Settings, Table, printed_table
from tammes.lab.report.tables import Column

if TYPE_CHECKING:
    from tammes.lab.training.config import Config

COLUMNS = (
    Column("many", "many", factor=100.0),
    Column("medium", "medium", factor=100.0),
    Column("few", "few", factor=100.0),
    Column("all", "accuracy", factor=100.0),
    Column("ECE", "ece", factor=100.0, falls=True),
    Column("m_cls", "class_margin_deg"),
)
COEFFICIENTS = (100, 10_000)
"""What "lambda is set 100" may mean as a coefficient of R_w."""

PAPER: Settings = {
    "model": "timm/resnet50",
    "image_size": 224,
    "objective": "CE",
    "optimizer": "sgd",
    "lr": 0.1,
    "weight_decay": 5e-4,
    "prototype_weight_decay": 5e-4,
    "unit_prototypes": False,
    "augment_style": "standard",
    "batch_size": 256,
    "epochs": 180,
}
LAPTOP = ("cifar10", "long_tailed:100", "laptop")
"""The part of Table 2 whose CE row is the first stage."""

PREFIXES = {"paper": "imagenet-lt-paper-", "laptop": table2.key_prefix(*LAPTOP)}
MIXUP = {"paper": 0.2, "laptop": 1.0}
"""MiSLAS's published settings for ImageNet-LT and CIFAR-10-LT; likewise the two below."""

MISLAS_PROTOTYPE_LR = {"paper": 0.05, "laptop": 0.5}
"""Learning rate of the prototypes in MiSLAS's second stage, relative to the first stage's learning rate."""

MISLAS_SHIFTS_BATCH_NORM = {"paper": True, "laptop": False}

Method = Literal["crt", "tau", "lws", "crt-mixup", "mislas"]
LABELS: dict[Method, str] = {
    "crt": "cRT",
    "tau": "tau-normalization",
    "lws": "LWS",
    "crt-mixup": "cRT, mixup",
    "mislas": "MiSLAS",
}
PRINTED: dict[Method, str] = {"crt": "cRT*", "crt-mixup": "cRT+mixup", "mislas": "MiSLAS"}
"""Names in the paper's table."""

NOTES = {
    "paper": ['"lambda is set 100": one row for each coefficient of R_w that this may mean.'],
    "laptop": [
        "Ours: CIFAR-10, long-tailed 100, fastnet-half, 40 epochs; the paper's Table 7 is on ImageNet-LT.",
        "MiSLAS here has no learnable scales of the prototypes.",
        "MiSLAS's authors report 82.5 here (ResNet-32, 200 epochs); Table 2's best single stage is 73.21.",
    ],
}


class TwoStages(NamedTuple):
    """A row: its first stage, the method of its second stage if it has one, and its name in the paper."""

    name: str
    label: str
    first: str
    method: Method | None = None
    r_w_in_both: bool = False
    printed: str = ""


def table(
    *,
    preset: Preset = "laptop",
    data: str = "ImageNet_LT_train.txt",
    data_root: str = "data",
    out: str = "results/table2",
    runs: str = "runs/table2",
) -> Table:
    """Appendix Table 7: two-stage methods with R_w in the first stage or in both.

    First stages are called ce and ce-mixup, with R_w ce+rw100, ce+rw10000, ...; methods that build on them
    crt, tau, lws, crt-mixup, mislas; with R_w in the first stage mislas+rw100-1, in both mislas+rw100-12. A
    method needs its first stage trained: name that too.

    Args:
        data: List of training images for --preset paper; the list of test images must be next to it.

    Examples:
        tammes reproduce table7 --rows ce crt tau lws --data-root data
        tammes reproduce table7 --rows ce-mixup mislas "ce-mixup+rw100" "mislas+rw100-*" --data-root data
        tammes reproduce table7 --preset paper --data ImageNet_LT_train.txt --data-root imagenet
    """
    settings = PAPER | {"data": data} if preset == "paper" else table2.run_settings(*LAPTOP)
    settings = settings | {"data_root": data_root}
    return Table(
        name=f"table7 {preset}",
        title=f"Two-stage methods, {preset} preset",
        columns=COLUMNS,
        rows=[_row(each, preset, settings, Path(runs)) for each in two_stages()],
        notes=NOTES[preset],
        prefix=PREFIXES[preset],
        out=out,
        runs=runs,
    )


def two_stages() -> Iterator[TwoStages]:
    """First stages, then the methods that build on them."""
    for end, text in {"": "", **{f"+rw{c}": f" + {c} R_w" for c in COEFFICIENTS}}.items():
        yield TwoStages(f"ce{end}", f"CE{text}", f"ce{end}", printed="CE+R_w" if end else "CE")
        yield TwoStages(f"ce-mixup{end}", f"CE, mixup{text}", f"ce-mixup{end}")
    simple: tuple[Method, ...] = ("crt", "tau", "lws")
    for method in simple:
        yield TwoStages(method, LABELS[method], "ce", method, printed=PRINTED.get(method, ""))
    yield from _with_mixup("crt-mixup", "+")
    yield from _with_mixup("mislas", "+ ")


def _with_mixup(method: Method, plus: str) -> Iterator[TwoStages]:
    """A method after mixup: without R_w, and with it in the first stage or in both (`plus`: as printed)."""
    first, label, printed = "ce-mixup", LABELS[method], PRINTED[method]
    yield TwoStages(method, label, first, method, printed=printed)
    for c in COEFFICIENTS:
        once = f"{printed}{plus}R_w (adding R_w for 1st stage)"
        twice = f"{printed}+R_w (adding R_w for 1st and 2nd stage)"
        after = f"{first}+rw{c}"
        yield TwoStages(f"{method}+rw{c}-1", f"{label}, {c} R_w in stage 1", after, method, False, once)
        yield TwoStages(f"{method}+rw{c}-12", f"{label}, {c} R_w in both", after, method, True, twice)


def _row(each: TwoStages, preset: Preset, settings: Settings, runs: Path) -> Row:
    prefix = PREFIXES[preset]
    config = _first_stage(each.first, preset, settings)
    if each.method is not None:
        config = _second_stage(each, config, preset, runs / f"{prefix}{each.first}")
    plain, r_w, _ = each.name.partition("+rw")
    return Row(
        key=prefix + each.name,
        label=each.label,
        config=config,
        paper=_printed(each.printed) if preset == "paper" else {},
        block="Mixup in the first stage" if "mixup" in each.first else "First stage as it is",
        versus=prefix + plain if r_w else "",
    )


def _first_stage(name: str, preset: Preset, settings: Settings) -> "Config":
    """The first stage called `name`: ce or ce-mixup, with +rw and a coefficient."""
    from tammes.lab.training.config import Config

    kind, _, coefficient = name.partition("+rw")
    own: Settings = {"objective": _with_raw_r_w("CE", coefficient)}
    if kind == "ce-mixup":
        own["mixup"] = MIXUP[preset]
    return Config(**(EACH_EPOCH | settings | own))


def _second_stage(each: TwoStages, first: "Config", preset: Preset, start: Path) -> "Config":
    """The config of the second stage, which starts from the run folder of `first`."""
    from tammes.lab.training.config import resolve
    from tammes.lab.training.stages import CRT, LWS, MISLAS, TAU, after

    stages = {"crt": CRT, "tau": TAU, "lws": LWS, "crt-mixup": CRT, "mislas": MISLAS}
    own: Settings = {}
    if each.method == "mislas":  # apart from its learnable scale of each prototype, which we leave out
        own["shift_batch_norm"] = MISLAS_SHIFTS_BATCH_NORM[preset]
        own["prototype_lr"] = MISLAS_PROTOTYPE_LR[preset] * resolve(first).lr
    config = after(first, stages[str(each.method)], start, **own)
    coefficient = each.first.partition("+rw")[2] if each.r_w_in_both else ""
    loss = config.objective.partition(" + ")[0]
    return dataclasses.replace(config, objective=_with_raw_r_w(loss, coefficient))


def _with_raw_r_w(loss: str, coefficient: str) -> str:
    return f"{loss} + {coefficient}*R_w(normalize=False)" if coefficient else loss


def _printed(name: str) -> dict[str, float]:
    cells = dict(printed_table("table7")["rows"].get(name, {}))
    return {"accuracy" if column == "all" else column: value for column, value in cells.items()}
