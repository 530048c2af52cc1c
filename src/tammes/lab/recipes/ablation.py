"""Ablation of R_sm on MNIST by network, projection and learning rate.

The laptop rows of Table 1 make one choice of each. Here NormFace (s = 64) is trained with and without
0.5 R_sm for every combination: prototypes on the feature maps (cnn4) or behind a hidden layer (cnn4-hidden),
scaled to norm 1 after each step or not, learning rate 0.01 or 0.1. The rest is as in Table 1's laptop rows.
Cost: about three core-minutes per row.
Run: tammes reproduce ablation --dataset mnist
"""

from collections.abc import Iterator
from itertools import product
from typing import Literal

from tammes.lab.recipes.table import Table, Variant, build_rows
from tammes.lab.recipes.table1 import COLUMNS, R_SM, SGD, TENTH

Dataset = Literal["mnist", "fashion-mnist"]
NAMES: dict[Dataset, str] = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
MODELS = ("cnn4-hidden", "cnn4")
LEARNING_RATES = (0.1, 0.01)
PROJECTED = {"projected": True, "free": False}

NOTE = (
    "NormFace (s=64), 10 epochs. Projected: prototypes are scaled to norm 1 after each step; "
    "free: they are normalized in the forward pass only."
)


def table(
    *,
    dataset: Dataset = "mnist",
    data_root: str = "data",
    out: str = "results/ablation",
    runs: str = "runs/ablation",
) -> Table:
    """NormFace (s=64) with and without 0.5 R_sm, for two networks, with and without projection.

    Row names: cnn4-projected-lr0.01, cnn4-projected-lr0.01+0.5rsm, likewise -free- (prototypes are
    normalized in the forward pass only), -lr0.1 and cnn4-hidden.

    Args:
        dataset: Data set: <dataset>.npz in the data root if it exists, else torchvision's files there.

    Examples:
        tammes reproduce ablation --data-root data --jobs 2
        tammes reproduce ablation --dataset fashion-mnist --rows "cnn4-hidden-projected-lr0.1*" --seeds 3
    """
    settings = SGD | TENTH | {"data": dataset, "data_root": data_root}
    return Table(
        name=f"ablation {dataset}",
        title=f"What the effect of R_sm depends on, {NAMES[dataset]}",
        columns=COLUMNS,
        rows=build_rows(_variants(), settings, prefix=f"{dataset}-"),
        notes=[NOTE],
        prefix=f"{dataset}-",
        out=out,
        runs=runs,
    )


def _variants() -> Iterator[Variant]:
    """Every combination, without and with 0.5 R_sm.

    >>> [variant.name for variant in _variants()][:2]
    ['cnn4-hidden-projected-lr0.1', 'cnn4-hidden-projected-lr0.1+0.5rsm']
    """
    for model, (projection, unit), rate, end in product(
        MODELS, PROJECTED.items(), LEARNING_RATES, ("", "+0.5rsm")
    ):
        plain, term = f"{model}-{projection}-lr{rate:g}", R_SM[end]
        own = {
            "model": model,
            "unit_prototypes": unit,
            "lr": rate,
            "objective": f"NormFace(s=64){term}",
        }
        label = f"{projection}, lr {rate:g}{term.replace('*', ' ')}"
        yield Variant(plain + end, label, model, own, plain if end else "")
