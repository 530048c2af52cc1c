"""CIFAR-10 on two cores, and the contribution of each choice to the numbers.

The first runs, in results/train, had R_sm, prototypes that started packed at the largest class margin and
learned at a tenth of the network's learning rate, and predictions averaged over each image and its mirror
image. The rows change one choice at a time: without R_sm, and from random prototypes. The first runs had a
time limit; the rows have as many epochs, so that they do not depend on the machine.
The last two rows ask for accuracy within an hour: no R_sm, twice the weight decay; in 20 epochs, and in 24
with a batch norm before the prototypes (BNNeck) and airbench's fast biases of batch norms.
Cost: 10 to 20 core-minutes per row of fastnet-half, 1 to 2 core-hours per row of fastnet.
Run: tammes reproduce cifar10 --data-root data --rows "half-*"
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from tammes.lab.recipes.table import Settings, Table, Variant, build_rows
from tammes.lab.recipes.table1 import COLUMNS, FAST, SGD


class FirstRun(NamedTuple):
    """A run in results/train: its network, epochs, loss, and the R_sm it adds."""

    model: str
    epochs: int
    evaluate_every: int
    loss: str
    term: str


FIRST_RUNS = {
    "half": FirstRun("fastnet-half", 16, 4, "NormFace(s=10)", " + R_sm"),
    "full": FirstRun("fastnet", 33, 8, "NormFace(s=5)", " + 2*R_sm"),
}
ACCURATE: Settings = {
    "model": "fastnet",
    "weight_decay": 1e-3,
    "prototype_init": "packed",
    "objective": "NormFace(s=5)",
}
WITHIN_AN_HOUR: dict[str, Settings] = {
    "short": {"epochs": 20, "evaluate_every": 5, "neck": False},
    "hour": {"epochs": 24, "evaluate_every": 6, "neck": True, "norm_bias_factor": 64.0},
}
OWN: Settings = {"lr": 0.2, "clip": None, "prototype_lr": 0.02, "prototype_weight_decay": 0.0}
SETTINGS: Settings = SGD | FAST | OWN
NOTE = (
    "Packed or random: where the prototypes start; packed is the largest class margin, 96.38 deg. Learning "
    "rate 0.2, for the prototypes 0.02; predictions averaged over mirror images; prototypes scaled to norm 1 "
    "after each step."
)


def table(*, data_root: str = "data", out: str = "results/cifar10", runs: str = "runs/cifar10") -> Table:
    """CIFAR-10 with and without R_sm, from packed and from random prototypes.

    Row names: half-packed, half-packed+rsm, half-random, half-random+rsm (fastnet-half, s = 10, about 20
    core-minutes each); full-packed and so on (fastnet, s = 5, about two core-hours each); short and hour
    (fastnet, s = 5, twice the weight decay; 34 and 42 minutes on one core).

    Examples:
        tammes reproduce cifar10 --data-root data --rows "half-*"
        tammes reproduce cifar10 --rows hour --seeds 3
    """
    return Table(
        name="cifar10",
        title="CIFAR-10 on two cores",
        columns=COLUMNS,
        rows=build_rows(_variants(), SETTINGS | {"data": "cifar10", "data_root": data_root}),
        notes=[NOTE],
        out=out,
        runs=runs,
    )


def _variants() -> Iterator[Variant]:
    """Each run from each start, without and with R_sm.

    >>> [variant.name for variant in _variants()][:4]
    ['half-packed', 'half-packed+rsm', 'half-random', 'half-random+rsm']
    """
    for (name, run), start, end in product(FIRST_RUNS.items(), ("packed", "random"), ("", "+rsm")):
        plain, term = f"{name}-{start}", run.term if end else ""
        own = {
            "model": run.model,
            "epochs": run.epochs,
            "evaluate_every": run.evaluate_every,
            "prototype_init": start,
            "objective": run.loss + term,
        }
        label = f"{run.loss}{term.replace('*', ' ')}, {start}"
        block = f"{run.model}, {run.epochs} epochs"
        yield Variant(plain + end, label, block, own, plain if end else "")
    for name, own in WITHIN_AN_HOUR.items():
        settings = ACCURATE | own
        block = "{model}, {epochs} epochs, weight decay {weight_decay:g}".format(**settings)
        block += ", BNNeck, fast biases" if settings["neck"] else ""
        yield Variant(name, "NormFace(s=5), packed", block, settings)
