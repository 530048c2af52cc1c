"""Table 2 and appendix Table 6: imbalanced classes with and without the zero-centroid regularizer R_w.

Paper: on imbalanced classes the losses have small class margins (LM-Softmax, long-tailed 100: 4.4 deg), and
lambda R_w raises them close to the maximum (92.6 of 96.4) and improves accuracy (65.3 to 73.2 %). The `paper`
preset has the appendix's settings: ResNet-18 or -34, SGD with momentum 0.9 and weight decay 2e-4, 200 epochs
of cosine schedule from 0.1, batch size 128, s = 5. `laptop` keeps data and objectives: a small fast network,
AdamW, 40 epochs. The coefficient of R_w is 100 lambda, on unit prototypes (erratum 11).
Related: choosing lambda on held-out images (table2_lambda.py), class margins without a network
(table2_free_features.py), figures (figures.py).
Run: tammes reproduce table2 --imbalance long_tailed:100
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from tammes._common import checks
from tammes.lab.recipes.table import Preset, Settings, Table, Variant, build_rows, printed_table
from tammes.lab.recipes.table1 import AUTHORS, PROJECTION
from tammes.lab.report.tables import Column

Dataset = Literal["cifar10", "cifar100"]
ImbalanceText = Literal["long_tailed:100", "long_tailed:10", "step:100", "step:10"]
NAMES: dict[Dataset, str] = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
IMBALANCES: tuple[ImbalanceText, ...] = ("long_tailed:100", "long_tailed:10", "step:100", "step:10")
COLUMNS = (
    Column("acc", "accuracy", factor=100.0),
    Column("m_cls", "class_margin_deg"),
    Column("many", "many", factor=100.0),
    Column("medium", "medium", factor=100.0),
    Column("few", "few", factor=100.0),
    Column("ECE", "ece", factor=100.0, falls=True),
)

LAMBDAS = (0, 1, 2, 5, 10, 20)
MAIN_LAMBDA = 10
"""The lambda of the curves with R_w and of the paper's claims."""

PLAIN = {"CE": "CE", "Focal": "Focal(gamma=1)"}
"""Losses on raw inner products, which the paper does not regularize here."""

LOSSES = {
    "CosFace": "CosFace(s=5, m=0.35)",
    "ArcFace": "ArcFace(s=5, m=0.1)",
    "NormFace": "NormFace(s=5)",
    "LDAM": "LDAM(s=5)",
    "LM-Softmax": "LMSoftmax(s=5)",
}
LSE_SCALES = (5, 20)
LSE_LAMBDAS = (0, 10)

MODELS = {"cifar10": "resnet18", "cifar100": "resnet34"}
PAPER: Settings = AUTHORS | {
    "optimizer": "sgd",
    "lr": 0.1,
    "weight_decay": 2e-4,
    "prototype_weight_decay": 2e-4,
    "epochs": 200,
}
LAPTOP: Settings = {"model": "fastnet-half", "epochs": 40, "evaluate_every": 8, "autocast": "auto"}
"""With the default AdamW, which gets further than the paper's SGD in so few steps."""


def table(
    *,
    dataset: Dataset = "cifar10",
    imbalance: ImbalanceText = "long_tailed:100",
    preset: Preset = "laptop",
    data_root: str = "data",
    out: str = "results/table2",
    runs: str = "runs/table2",
) -> Table:
    """Table 2 and appendix Table 6: imbalanced classes with and without R_w.

    acc is the test accuracy, m_cls the smallest angle between two prototypes. Row names: ce, focal,
    cosface-0, cosface-1, ... cosface-20 (lambda; the coefficient of R_w is 100 lambda), likewise arcface,
    normface, ldam and lmsoftmax, and lse-s5-0, lse-s5-10, lse-s20-0, lse-s20-10.

    Args:
        dataset: Data set: <dataset>.npz in the data root if it exists, else torchvision's files there.
        imbalance: Imbalance of the training classes.

    Examples:
        tammes reproduce table2 --free-features
        tammes reproduce table2 --imbalance long_tailed:100 --rows ce "lmsoftmax-*" --data-root data
        tammes reproduce table2 --imbalance long_tailed:100 --rows "lmsoftmax-*" --choose
        tammes reproduce table2 --dataset cifar100 --preset paper --imbalance step:10
    """
    settings = run_settings(dataset, imbalance, preset)
    prefix = key_prefix(dataset, imbalance, preset)
    return Table(
        name=f"table2 {dataset} {imbalance} {preset}",
        title=f"Table 2 on {NAMES[dataset]}, {imbalance}, {preset} preset",
        columns=COLUMNS,
        rows=build_rows(
            variants(), settings | {"data_root": data_root}, prefix=prefix, paper=printed(dataset, imbalance)
        ),
        notes=[
            f"Ours: {settings['model']}, {settings['epochs']} epochs; "
            f"the paper's: {MODELS[dataset]}, {PAPER['epochs']} epochs.",
            *([PROJECTION] if preset == "laptop" else []),
            "The paper's numbers are those of appendix Table 6; Table 2 differs for CE (erratum 13).",
        ],
        prefix=prefix,
        out=out,
        runs=runs,
    )


def run_settings(dataset: str, imbalance: str, preset: str) -> Settings:
    """The settings that all rows of one data set, imbalance and preset share."""
    own = PAPER | {"model": MODELS[dataset]} if preset == "paper" else LAPTOP
    return own | {"data": dataset, "imbalance": imbalance}


def key_prefix(dataset: str, imbalance: str, preset: str) -> str:
    """The start of all keys.

    >>> key_prefix("cifar10", "long_tailed:100", "laptop")
    'cifar10-long_tailed-100-laptop-'
    """
    return f"{dataset}-{imbalance.replace(':', '-')}-{preset}-"


def variants() -> Iterator[Variant]:
    """The rows of appendix Table 6 in its order, then LM-Softmax as the theory asks for (erratum 2)."""
    for loss, text in PLAIN.items():
        yield Variant(loss.lower(), loss, "Raw inner products", {"objective": text})
    for loss, text in LOSSES.items():
        yield from _over(LAMBDAS, loss_name(loss), loss, loss, text)
    for s in LSE_SCALES:
        text, label = f'LMSoftmax(s={s}, reduction="lse")', f"LM-Softmax lse (s={s})"
        yield from _over(LSE_LAMBDAS, f"lse-s{s}", label, "LM-Softmax with log-sum-exp reduction", text)


def _over(lambdas: Sequence[int], name: str, label: str, block: str, text: str) -> Iterator[Variant]:
    for strength in lambdas:
        versus = f"{name}-0" if strength else ""
        own = {"objective": with_r_w(text, strength)}
        yield Variant(f"{name}-{strength}", f"{label} (lambda={strength})", block, own, versus)


def with_r_w(loss: str, strength: float) -> str:
    """`loss` with the paper's lambda, as 100 lambda R_w.

    >>> with_r_w("NormFace(s=5)", 10)
    'NormFace(s=5) + 1000*R_w'
    """
    if checks.finite("lambda", strength) < 0:
        raise ValueError(f"lambda must not be negative, got {strength}.")
    return f"{loss} + {100 * strength:g}*R_w" if strength else loss


def loss_name(loss: str) -> str:
    """The name of a loss in keys.

    >>> loss_name("LM-Softmax")
    'lmsoftmax'
    """
    return loss.lower().replace("-", "")


def printed(dataset: str, imbalance: str) -> dict[str, dict[str, float]]:
    """The numbers of appendix Table 6 by row: accuracy in per cent, class margin in degrees."""
    setting, found = f"{dataset} {imbalance}", {}
    for loss, by_lambda in printed_table("table6")["rows"].items():
        for strength, cells in by_lambda.items():
            if setting in cells:
                name = loss.lower() if loss in PLAIN else f"{loss_name(loss)}-{strength}"
                found[name] = dict(zip(("accuracy", "class_margin_deg"), cells[setting], strict=True))
    return found
