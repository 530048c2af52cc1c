"""Soft targets: every class of every row as the label, each with its own rest, rival and margin."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tammes._common.types import ClassPrototypes, Embeddings, Scalar
from tammes.geometry.sphere import safe_norm
from tammes.losses._engine.dense_statistics import of_best_centers, prototype_sums, similarities
from tammes.losses._engine.plan import Need, Plan, PrototypeSum, plain_sum
from tammes.losses._engine.statistics import NOT_ASKED, Outcome, check_asked, class_energy
from tammes.losses.scores import Scores, Smoothing, Space

Matrix = Float[Tensor, "n k"]


@dataclass(frozen=True, eq=False)
class EveryTarget:
    """`Statistics` with n k rows: sample i with label y is row i k + y. The targets are already n x k."""

    matrices: dict[Space, Matrix]
    sums: dict[PrototypeSum, Float[Tensor, " d"]]
    norms: Matrix  # |z_i| |w_j|
    row_norms: Float[Tensor, "n 1"]
    weight: ClassPrototypes
    plan: Plan

    @classmethod
    def of(cls, embeddings: Embeddings, weight: ClassPrototypes, plan: Plan) -> "EveryTarget":
        row_norms = safe_norm(embeddings)
        rows = weight.reshape(-1, weight.shape[-1])
        centers = len(rows) // len(weight)
        found = similarities(embeddings, rows, plan)
        matrices, best = of_best_centers(found, plan._replace(centers=centers))
        norms = row_norms * safe_norm(rows).t()
        norms = norms if best is None else norms.gather(1, best)
        return cls(
            matrices=matrices,
            sums={which: total / centers for which, total in prototype_sums(rows, plan).items()},
            norms=norms,
            row_norms=row_norms,
            weight=weight,
            plan=plan,
        )

    @property
    def num_classes(self) -> int:
        return self.weight.shape[0]

    @property
    def labels(self) -> Int[Tensor, " nk"]:
        rows = self.row_norms.shape[0]
        return torch.arange(self.num_classes, device=self.weight.device).repeat(rows)

    def readings(self, need: Need, place: int = 0) -> list[Scores]:
        """The `Scores` of the term at `place`, restricted to its `need`, with n k rows."""
        matrix = self.matrices[need.space]
        asked: dict[str, Any] = {}
        if need.scale is not None:
            logits = self.plan.logits_of(need.rest(place))
            asked["rest"] = rest_without_each(logits.dense(matrix)).flatten()
        if need.hardest:
            asked["hardest"] = self._hardest(need.space)
        if need.mean:
            asked["mean"] = _for_every_target(matrix.mean(1), matrix)
        if need.norms:
            asked["norms"] = self._norms(need.space).flatten()
        if need.smoothing:
            asked["smoothing"] = self._smoothing(matrix)
        if need.feature_norms:
            asked["feature_norms"] = _for_every_target(self.row_norms.squeeze(1), matrix)
        if need.noise:
            assert self.plan.noise is not None
            asked["noise"] = _for_every_target(self.plan.noise, matrix)
        return [
            Scores(
                target=matrix.flatten(),
                scale=self.scale(need, place),
                labels=self.labels,
                num_classes=self.num_classes,
                state=self.plan.states.get(place, {}),
                **(NOT_ASKED | asked),
            )
        ]

    def scale(self, need: Need, place: int) -> float | Scalar:
        """The scale of the term at `place`, which asked for `need`; 1 if it has none."""
        return 1.0 if need.scale is None else self.plan.logits_of(need.rest(place)).scale

    def outcomes(self, logits: Space) -> list[Outcome]:
        """The outcome for every class as the label."""
        matrix = self.matrices[logits]
        best, _ = first_two(matrix)
        margin = self.matrices["cosine"].flatten() - self._hardest("cosine")
        return [Outcome(self.labels, _at(matrix, best).to(matrix.dtype).flatten(), margin)]

    def _hardest(self, space: Space) -> Float[Tensor, " nk"]:
        matrix = self.matrices[space]
        best, second = first_two(matrix)
        return matrix.gather(1, torch.where(_at(matrix, best), second, best)).flatten()

    def centroid(self, space: Space) -> Float[Tensor, " d"]:
        """Mean of the raw or the unit prototypes, all of them if a class has several."""
        check_asked(self.sums, space)
        return self.sums[plain_sum(space)] / self.num_classes

    def _smoothing(self, matrix: Matrix) -> Smoothing:
        weight = self.plan.class_weight
        if weight is None:
            return Smoothing(1.0, float(self.num_classes), _for_every_target(matrix.sum(1), matrix))
        return Smoothing(weight[self.labels], weight.sum(), _for_every_target(matrix @ weight, matrix))

    def riesz(self, power: float) -> Scalar:
        """Energy of the unit prototypes."""
        return class_energy(self.weight, power)

    def _norms(self, space: Space) -> Matrix:
        if space == "cosine":
            return torch.ones_like(self.norms)
        return self.norms if space == "raw" else self.row_norms.expand_as(self.norms)


def first_two(matrix: Matrix) -> tuple[Int[Tensor, "n 1"], Int[Tensor, "n 1"]]:
    """Columns of the largest and second largest entry of each row, the lowest index among equals."""
    values = matrix.detach()
    best = values.max(1, keepdim=True).indices
    return best, values.scatter(1, best, -torch.inf).max(1, keepdim=True).indices


def rest_without_each(logits: Matrix) -> Matrix:
    r"""For each class y: :math:`\log \sum_{j \ne y} e^{x_j}`.

    Except at the row's maximum, the total is at least twice the excluded term, so subtracting it loses at
    most one bit. For the maximum itself, the sum is computed without it.
    """
    best, _ = first_two(logits)
    is_best = _at(logits, best)
    total = torch.logsumexp(logits, 1, keepdim=True)
    share = torch.where(is_best, -1.0, logits - total)
    without_best = torch.logsumexp(logits.masked_fill(is_best, -torch.inf), 1, keepdim=True)
    return torch.where(is_best, without_best, total + torch.log1p(-share.exp()))


def _for_every_target(values: Float[Tensor, " n"], matrix: Matrix) -> Float[Tensor, " nk"]:
    return values[:, None].expand_as(matrix).flatten()


def _at(matrix: Matrix, column: Int[Tensor, "n 1"]) -> Tensor:
    return torch.zeros_like(matrix, dtype=torch.bool).scatter(1, column, value=True)
