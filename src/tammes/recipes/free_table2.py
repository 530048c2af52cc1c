"""Table 2 without a network: the class margin that each row tends to when features are free (erratum 17).

For NormFace, CosFace and ArcFace at lambda = 0 on CIFAR-10 this is within 0.3 deg of the printed margins
where the paper's runs converged; a run that is further off has not come to its optimum.
Run: tammes reproduce table2 --free-features
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tammes.geometry.simplex import simplex
from tammes.geometry.sphere import normalize
from tammes.recipes import table2
from tammes.theory import FreeFeatures, free_features

DIMENSIONS = 512
"""Features of the paper's ResNets."""

DATASETS = ("cifar10", "cifar100")
NEAR = 0.3
"""Degrees within which a printed margin counts as the optimum's."""


class FreeRow(NamedTuple):
    """One cell of the table: a loss, a setting, a lambda."""

    dataset: str
    imbalance: str
    loss: str
    strength: int  # lambda
    objective: str
    class_margin_deg: float
    largest_deg: float  # that any prototypes can have
    printed_deg: float
    gradient: float
    seconds: float

    @property
    def gap(self) -> float:
        """Printed less computed, in degrees."""
        return self.printed_deg - self.class_margin_deg

    @property
    def near(self) -> bool:
        return abs(self.gap) <= NEAR


def settings() -> dict[str, Any]:
    """Every choice behind the table."""
    return {
        "dimensions": DIMENSIONS,
        "lambdas": table2.LAMBDAS,
        "factor of lambda": 100,
        "losses": table2.LOSSES,
        "class counts": {f"{d} {i}": table2.counts(d, i) for d in DATASETS for i in table2.KINDS},
    }


def cells(datasets: Sequence[str] = DATASETS) -> Iterator[tuple[str, str, str, int]]:
    """Data set, imbalance, loss and lambda of every cell; CE and Focal have no optimum (Theorem 3.1)."""
    for dataset in datasets:
        for imbalance in table2.KINDS:
            for loss in table2.LOSSES:
                for strength in table2.LAMBDAS:
                    yield dataset, imbalance, loss, strength


def free_row(dataset: str, imbalance: str, loss: str, strength: int) -> FreeRow:
    """Descend one objective with the classes of one setting."""
    counts, objective = table2.counts(dataset, imbalance), table2.objective(loss, strength)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what has not converged shows in the gradient
        start = _near_simplex(len(counts)) if strength else None
        found = free_features(objective, counts, DIMENSIONS, start=start)
    printed = table2.paper(dataset, imbalance)[f"{table2.name_of(loss)}-{strength}"]
    return FreeRow(
        dataset=dataset,
        imbalance=imbalance,
        loss=loss,
        strength=strength,
        objective=str(objective),
        class_margin_deg=math.degrees(found.class_margin),
        largest_deg=math.degrees(math.acos(-1 / (len(counts) - 1))),
        printed_deg=printed["class_margin_deg"],
        gradient=found.gradient,
        seconds=found.seconds,
    )


def _near_simplex(k: int) -> FreeFeatures:
    """A start close to where R_w leads, but off its symmetry: several times faster than a random one."""
    noise = torch.randn(k, DIMENSIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise[:, k + 1 :] = 0  # descent keeps the simplex and one direction out of it
    points = normalize(simplex(k, DIMENSIONS, dtype=torch.float64) + 1e-3 * noise)
    return FreeFeatures(points, points, class_margin=0.0, loss=0.0, gradient=0.0, seconds=0.0)


def verdict(rows: Sequence[FreeRow]) -> list[str]:
    """What the comparison shows, in sentences."""
    plain = [row for row in rows if row.strength == 0 and row.dataset == "cifar10"]
    off = [row for row in plain if not row.near]
    said = [
        f"CIFAR-10, lambda = 0: {len(plain) - len(off)} of {len(plain)} printed margins are the optimum's."
    ]
    if off:
        names = "; ".join(
            f"{r.loss} {r.imbalance} ({r.printed_deg:.2f}, optimum {r.class_margin_deg:.2f})" for r in off
        )
        said.append(f"More than {NEAR} deg off, so not converged: {names}.")
    with_r_w = [row for row in rows if row.strength and row.dataset == "cifar10"]
    if with_r_w:
        short = sum(row.gap < -NEAR for row in with_r_w)
        said.append(f"CIFAR-10, lambda > 0: {short} of {len(with_r_w)} printed margins fall short by more.")
    return said
