"""From embeddings and prototypes to `Scores`: what terms ask for, and the plain way to compute it.

A `Plan` gathers what all terms of an objective read, so that one matrix product serves them all. A head
turns embeddings, weight, labels and a plan into `Statistics`; `dense` here is the reference, the heads
have the streamed and sharded ways to the same numbers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tammes.geometry.energy import riesz_energy
from tammes.geometry.sphere import safe_norm
from tammes.losses.scores import Scores, Space
from tammes.types import Embeddings, PerSample, Prototypes, Scalar

Targets = Int[Tensor, "n t"]
"""The classes a sample may count as: one column for labels, two for mixed labels."""


class Need(NamedTuple):
    """What one term reads."""

    space: Space = "cosine"
    scale: float | None = None  # of `rest`; None when it is not read
    hardest: bool = False  # read with its gradient
    mean: bool = False
    norms: bool = False
    prototype_sum: bool = False


class Plan(NamedTuple):
    """What all terms of an objective read together."""

    spaces: tuple[Space, ...]  # the first is that of the logits
    rests: tuple[tuple[Space, float], ...]
    hardest: tuple[Space, ...]  # with gradients; the values are always there
    sums: tuple[Space, ...]  # of "raw" or "cosine" (unit) prototypes
    norms: bool

    @classmethod
    def of(cls, needs: Iterable[Need], logits: Space) -> "Plan":
        """The union of `needs`, for a head whose logits live in `logits`; margins are always cosines."""
        needs = list(needs)
        summed = [need for need in needs if need.mean or need.prototype_sum]
        return cls(
            spaces=_distinct([logits, *(need.space for need in needs), "cosine"]),
            rests=_distinct((need.space, need.scale) for need in needs if need.scale is not None),
            hardest=_distinct(need.space for need in needs if need.hardest),
            sums=_distinct("raw" if need.space == "raw" else "cosine" for need in summed),
            norms=any(need.norms and need.space == "raw" for need in needs),
        )

    @property
    def product_space(self) -> Space:
        """The space of the one matrix product from which all others follow by scaling rows and columns."""
        for space in ("raw", "unit_prototypes"):
            if space in self.spaces:
                return space
        return "cosine"


def _distinct(items: Iterable) -> tuple:
    return tuple(dict.fromkeys(items))


class Outcome(NamedTuple):
    """What a batch came to, for people rather than for gradients."""

    labels: Int[Tensor, " n"]
    correct: PerSample  # 1 where the label has the largest similarity (the lowest class wins a tie), else 0
    margin: PerSample  # sample margin, of cosines


NOT_ASKED: Any = None
"""Stands in `Scores` for what a term did not name in its `Need`: reading it fails at once."""


class Rivals(NamedTuple):
    """The largest similarity among the classes that are not targets, and the lowest class that has it."""

    value: PerSample
    label: Int[Tensor, " n"]


@dataclass(frozen=True, eq=False)
class Statistics:
    """The numbers of a `Plan` for a batch; `target` columns follow those of `targets`.

    `rest` and `rivals` leave out every target column; `scores` puts the other columns back where one
    column is the label. So a row of two mixed labels costs no second pass, and nothing is subtracted.
    """

    targets: Targets
    num_classes: int
    target: dict[Space, Float[Tensor, "n t"]]
    rest: dict[tuple[Space, float], PerSample]
    rivals: dict[Space, Rivals]
    sums: dict[Space, Float[Tensor, " d"]]
    rows: dict[Space, Embeddings]  # embeddings as they enter each space
    row_norms: PerSample
    target_norms: Float[Tensor, "n t"] | None  # |w_{y_i}|
    riesz: Callable[[float], Scalar]  # energy of the unit prototypes, for one power

    def readings(self, need: Need) -> list[Scores]:
        """What a term that asked for `need` reads, for each target column as the label."""
        return [self.scores(need, column) for column in range(self.targets.shape[1])]

    def scores(self, need: Need, column: int = 0) -> Scores:
        """`readings`, for one target column; a field that was not asked for is None."""
        space = need.space
        return Scores(
            target=self.target[space][:, column],
            rest=NOT_ASKED if need.scale is None else self._rest(space, need.scale, column),
            hardest=self.hardest(space, column).value if need.hardest else NOT_ASKED,
            mean=self.rows[space] @ self._mean_prototype(space) if need.mean else NOT_ASKED,
            scale=1.0 if need.scale is None else need.scale,
            labels=self.targets[:, column],
            num_classes=self.num_classes,
            norms=self._norms(space, column) if need.norms else NOT_ASKED,
        )

    def hardest(self, space: Space, column: int = 0) -> Rivals:
        """The hardest wrong class when `column` is the label: a rival, or another target column."""
        value, rival = self.rivals[space]
        for other in self._others(column):
            cosine, label = self.target[space][:, other], self.targets[:, other]
            wrong = label != self.targets[:, column]
            harder = wrong & ((cosine > value) | ((cosine == value) & (label < rival)))
            value, rival = torch.where(harder, cosine, value), torch.where(harder, label, rival)
        return Rivals(value, rival)

    def outcomes(self, logits: Space) -> list[Outcome]:
        """For each target column as the label, what the batch came to."""
        columns = range(self.targets.shape[1])
        return [
            Outcome(
                labels=self.targets[:, column],
                correct=self._correct(logits, column),
                margin=self.target["cosine"][:, column] - self.hardest("cosine", column).value,
            )
            for column in columns
        ]

    def _correct(self, space: Space, column: int) -> PerSample:
        target = self.target[space][:, column]
        value, rival = self.hardest(space, column)
        first = (target > value) | ((target == value) & (self.targets[:, column] < rival))
        return first.to(target.dtype)

    def centroid(self, space: Space) -> Float[Tensor, " d"]:
        """Mean of the raw or the unit prototypes, for terms on prototypes alone."""
        return self._mean_prototype(space)

    def _mean_prototype(self, space: Space) -> Float[Tensor, " d"]:
        return self.sums["raw" if space == "raw" else "cosine"] / self.num_classes

    def _rest(self, space: Space, scale: float, column: int) -> PerSample:
        rest = self.rest[space, scale]
        for other in self._others(column):
            logit = scale * self.target[space][:, other]
            wrong = self.targets[:, other] != self.targets[:, column]
            rest = torch.where(wrong, torch.logaddexp(rest, logit), rest)
        return rest

    def _norms(self, space: Space, column: int) -> PerSample:
        if space == "cosine":
            return torch.ones_like(self.row_norms)
        if space == "unit_prototypes":
            return self.row_norms
        assert self.target_norms is not None
        return self.row_norms * self.target_norms[:, column]

    def _others(self, column: int) -> list[int]:
        return [other for other in range(self.targets.shape[1]) if other != column]


def rows_of(embeddings: Embeddings, spaces: Iterable[Space]) -> tuple[dict[Space, Embeddings], PerSample]:
    """The embeddings as they enter each of `spaces`, and their norms (1 for a zero row)."""
    norms = safe_norm(embeddings)
    rows: dict[Space, Embeddings] = dict.fromkeys(spaces, embeddings)
    if "cosine" in rows:
        rows["cosine"] = embeddings / norms
    return rows, norms.squeeze(1)


def similarities(embeddings: Embeddings, weight: Prototypes, plan: Plan) -> dict[Space, Float[Tensor, "n k"]]:
    """The similarity matrix of every space of `plan`, from one matrix product."""
    rows, row_norms = rows_of(embeddings, plan.spaces)
    column_norms = safe_norm(weight)
    base = plan.product_space
    columns = weight if base == "raw" else weight / column_norms
    product = rows[base] @ columns.mT
    return {
        space: _rescale(product, base, space, row_norms, column_norms.squeeze(1)) for space in plan.spaces
    }


def _rescale(product: Tensor, base: Space, space: Space, row_norms: Tensor, column_norms: Tensor) -> Tensor:
    """A product in `base` as the similarity of `space`, which normalises at least as much."""
    if base == "raw" and space != "raw":
        product = product / column_norms
    if base != "cosine" and space == "cosine":
        product = product / row_norms[:, None]
    return product


def dense(embeddings: Embeddings, weight: Prototypes, targets: Targets, plan: Plan) -> Statistics:
    """The reference: whole similarity matrices and plain autograd, differentiable any number of times."""
    weight = weight.to(embeddings.dtype)
    matrices = similarities(embeddings, weight, plan)
    rows, row_norms = rows_of(embeddings, plan.spaces)
    masked = {space: matrix.scatter(1, targets, -torch.inf) for space, matrix in matrices.items()}
    rivals: dict[Space, Rivals] = {}
    for space in plan.spaces:
        read = masked[space] if space in plan.hardest else masked[space].detach()
        rivals[space] = Rivals(*read.max(1))  # the first of equal values, as torch documents
    return Statistics(
        targets=targets,
        num_classes=weight.shape[0],
        target={space: matrix.gather(1, targets) for space, matrix in matrices.items()},
        rest={(space, scale): _log_sum_exp(scale * masked[space], targets) for space, scale in plan.rests},
        rivals=rivals,
        sums=prototype_sums(weight, plan),
        rows=rows,
        row_norms=row_norms,
        target_norms=safe_norm(weight).squeeze(1)[targets] if plan.norms else None,
        riesz=lambda power: riesz_energy(weight, power),
    )


def prototype_sums(weight: Prototypes, plan: Plan) -> dict[Space, Float[Tensor, " d"]]:
    """Sums of the raw and of the unit prototypes, those that `plan` asks for."""
    return {
        space: weight.sum(0) if space == "raw" else (weight / safe_norm(weight)).sum(0) for space in plan.sums
    }


def _log_sum_exp(logits: Float[Tensor, "n k"], targets: Targets) -> PerSample:
    """Row-wise log-sum-exp; -inf with zero gradients for a row that is masked throughout."""
    if logits.shape[1] > targets.shape[1]:
        return torch.logsumexp(logits, dim=1)
    empty = (logits.detach() == -torch.inf).all(1)
    safe = torch.where(empty[:, None], 0.0, logits)
    return torch.where(empty, -torch.inf, torch.logsumexp(safe, dim=1))
