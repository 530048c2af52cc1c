"""Table 1 and appendix Table 5: balanced classification with and without the sample margin regularizer.

Paper: a large s costs class margin (CIFAR-10, NormFace: 96.3 deg at s = 5, 36.5 at s = 64), and 0.5 R_sm
restores it (93.9) at the same accuracy. The `paper` preset has the appendix's settings: SGD with momentum 0.9
and weight decay 1e-4, cosine schedule over 100, 200 or 250 epochs from 0.01 (MNIST) or 0.1, batch size 256.
`laptop` keeps data and objectives: for MNIST a similar network, 10 epochs from 0.1; otherwise a small fast
network, 10 epochs.
Cost: each record has its seconds. Laptop rows take minutes on a few cores; the paper's ResNets need GPUs.
Run: tammes reproduce table1 --dataset mnist
"""

from collections.abc import Iterator
from typing import Literal

from tammes.lab.recipes.table import Preset, Settings, Table, Variant, build_rows, printed_table
from tammes.lab.report.tables import Column

Dataset = Literal["mnist", "cifar10", "cifar100"]
NAMES: dict[Dataset, str] = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
COLUMNS = (
    Column("acc %", "accuracy", 2, 100.0),
    Column("m_cls deg", "class_margin_deg", 2),
    Column("m_samp", "sample_margin", 4),
)

SCALES = (5, 10, 20, 40, 64)
LM_SCALES = (10, 20, 40, 64)
LOSSES = {
    "CosFace": "CosFace(s={s}, m=0.1)",
    "ArcFace": "ArcFace(s={s}, m=0.1)",
    "NormFace": "NormFace(s={s})",
}
R_SM = {"": "", "+0.5rsm": " + 0.5*R_sm", "+rsm": " + R_sm"}
"""Suffix of a key to suffix of its objective."""

LM_BLOCK = "LM-Softmax (Figs. 5, 6)"
FIXED_BLOCK = "Fixed prototypes (Fig. 2)"

SGD: Settings = {"optimizer": "sgd", "batch_size": 256, "weight_decay": 1e-4, "prototype_weight_decay": 1e-4}
"""The paper names one weight decay, so the prototypes have it too."""

AUTHORS: Settings = {
    "clip": 5.0,
    "unit_prototypes": False,
    "prototype_init": "linear",
    "augment_style": "standard",
}
"""What the text leaves open, as in public code that derives from the authors' (docs/table1.md)."""

PAPER: dict[str, Settings] = {
    "mnist": AUTHORS | {"model": "cnn4-padded", "epochs": 100, "lr": 0.01},
    "cifar10": AUTHORS | {"model": "resnet18", "epochs": 200, "lr": 0.1},
    "cifar100": AUTHORS | {"model": "resnet34", "epochs": 250, "lr": 0.1},
}
FAST: Settings = {
    "model": "fastnet-half",
    "epochs": 10,
    "lr": 0.1,
    "clip": 5.0,
    "schedule": "one-cycle",
    "nesterov": True,
    "weight_decay": 5e-4,
    "test_flip": True,
    "autocast": "auto",
}
"""The paper's learning rate for all rows, clipped as in the authors' scripts, since gradients grow with s."""

TENTH: Settings = {"model": "cnn4-hidden", "epochs": 10, "lr": 0.1, "autocast": "auto"}
"""A tenth of the paper's epochs at ten times its learning rate, so that the steps sum to the same."""

LAPTOP: dict[str, Settings] = {"mnist": TENTH, "cifar10": FAST, "cifar100": FAST}

WIDE = Variant(
    "fastnet-normface-s10+0.5rsm",
    "NormFace (s=10) + 0.5 R_sm",
    "Full-width network",
    {"model": "fastnet", "objective": "NormFace(s=10) + 0.5*R_sm"},
)

PROJECTION = "Ours: prototypes of cosine losses are scaled to norm 1 after each step (the projection)."


def table(
    *,
    dataset: Dataset = "mnist",
    preset: Preset = "laptop",
    data_root: str = "data",
    out: str = "results/table1",
    runs: str = "runs/table1",
) -> Table:
    """Table 1 and appendix Table 5: balanced classification with and without R_sm.

    acc is the test accuracy, m_cls the smallest angle between two prototypes, m_samp the mean sample
    margin on the test images. Row names: ce, rsm, ce+0.5rsm, cosface-s64, cosface-s64+0.5rsm,
    cosface-s64+rsm, likewise arcface and normface, and lmsoftmax-s64, normface-s10-fixed.

    Args:
        dataset: Data set: <dataset>.npz in the data root if it exists, else torchvision's files there.

    Examples:
        tammes reproduce table1 --dataset mnist --rows "normface-s64*"
        tammes reproduce table1 --dataset cifar10 --data-root data --jobs 2
        tammes reproduce table1 --dataset cifar10 --show
    """
    settings = SGD | (PAPER if preset == "paper" else LAPTOP)[dataset]
    wide = [WIDE] if settings["model"] == FAST["model"] else []
    prefix = f"{dataset}-{preset}-"
    return Table(
        name=f"table1 {dataset} {preset}",
        title=f"Table 1 on {NAMES[dataset]}, {preset} preset",
        columns=COLUMNS,
        rows=build_rows(
            [*variants(), *wide],
            settings | {"data": dataset, "data_root": data_root},
            prefix=prefix,
            paper=printed(dataset),
        ),
        notes=_notes(dataset, settings),
        prefix=prefix,
        out=out,
        runs=runs,
    )


def variants() -> Iterator[Variant]:
    """The rows of appendix Table 5 in its order, then those that only the figures need."""
    yield Variant("ce", "CE", "Cross-entropy", {"objective": "CE"})
    yield Variant("rsm", "R_sm", "Cross-entropy", {"objective": "R_sm"})
    yield Variant("ce+0.5rsm", "CE + 0.5 R_sm", "Cross-entropy", {"objective": "CE + 0.5*R_sm"}, "ce")
    for loss, text in LOSSES.items():
        block = loss if loss == "NormFace" else f"{loss}, m = 0.1"
        for end, term in R_SM.items():
            for s in SCALES:
                plain = f"{loss.lower()}-s{s}"
                label = f"{loss} (s={s}){term.replace('*', ' ')}"
                own = {"objective": text.format(s=s) + term}
                yield Variant(plain + end, label, block, own, plain if end else "")
    for s in LM_SCALES:
        yield Variant(f"lmsoftmax-s{s}", f"LM-Softmax (s={s})", LM_BLOCK, {"objective": f"LMSoftmax(s={s})"})
    fixed = {"objective": "NormFace(s=10)", "prototype_init": "packed", "trainable_prototypes": False}
    yield Variant("normface-s10-fixed", "NormFace (s=10), prototypes fixed", FIXED_BLOCK, fixed)


def printed(dataset: str) -> dict[str, dict[str, float]]:
    """The paper's numbers by row: accuracy in per cent, class margin in degrees, mean sample margin."""
    stored = printed_table("table1")
    return {
        name: dict(zip(stored["columns"], sets[dataset], strict=True))
        for name, sets in stored["rows"].items()
        if dataset in sets
    }


def _notes(dataset: str, ours: Settings) -> list[str]:
    theirs = PAPER[dataset]
    networks = (
        f"Ours: {ours['model']}, {ours['epochs']} epochs; "
        f"the paper's: {theirs['model']}, {theirs['epochs']} epochs."
    )
    projected = ours.get("unit_prototypes") is None  # the default for cosine losses
    return [networks, PROJECTION] if projected else [networks]
