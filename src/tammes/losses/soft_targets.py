"""Soft targets: every class of every row as the label, each with its own rest, rival and margin."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tammes.geometry.energy import riesz_energy
from tammes.geometry.sphere import safe_norm
from tammes.losses.scores import Scores, Space
from tammes.losses.statistics import NOT_ASKED, Need, Outcome, Plan, prototype_sums, similarities
from tammes.types import Embeddings, Prototypes, Scalar

Matrix = Float[Tensor, "n k"]


@dataclass(frozen=True, eq=False)
class EveryTarget:
    """`Statistics` with n k rows: sample i as class y stands at i k + y. The targets are n x k already."""

    matrices: dict[Space, Matrix]
    sums: dict[Space, Float[Tensor, " d"]]
    norms: Matrix  # |z_i| |w_j|
    row_norms: Float[Tensor, "n 1"]
    weight: Prototypes

    @classmethod
    def of(cls, embeddings: Embeddings, weight: Prototypes, plan: Plan) -> "EveryTarget":
        row_norms = safe_norm(embeddings)
        return cls(
            matrices=similarities(embeddings, weight, plan),
            sums=prototype_sums(weight, plan),
            norms=row_norms * safe_norm(weight).mT,
            row_norms=row_norms,
            weight=weight,
        )

    @property
    def num_classes(self) -> int:
        return self.weight.shape[0]

    @property
    def labels(self) -> Int[Tensor, " nk"]:
        rows = self.row_norms.shape[0]
        return torch.arange(self.num_classes, device=self.weight.device).repeat(rows)

    def readings(self, need: Need) -> list[Scores]:
        """One `Scores` of n k rows: what a term that asked for `need` reads."""
        matrix = self.matrices[need.space]
        scale = 1.0 if need.scale is None else need.scale
        return [
            Scores(
                target=matrix.flatten(),
                rest=NOT_ASKED if need.scale is None else rest_without_each(scale * matrix).flatten(),
                hardest=self._hardest(need.space) if need.hardest else NOT_ASKED,
                mean=matrix.mean(1, keepdim=True).expand_as(matrix).flatten() if need.mean else NOT_ASKED,
                scale=scale,
                labels=self.labels,
                num_classes=self.num_classes,
                norms=self._norms(need.space).flatten() if need.norms else NOT_ASKED,
            )
        ]

    def outcomes(self, logits: Space) -> list[Outcome]:
        """What the batch came to, for every class as the label."""
        matrix = self.matrices[logits]
        best, _ = first_two(matrix)
        margin = self.matrices["cosine"].flatten() - self._hardest("cosine")
        return [Outcome(self.labels, _at(matrix, best).to(matrix.dtype).flatten(), margin)]

    def _hardest(self, space: Space) -> Float[Tensor, " nk"]:
        matrix = self.matrices[space]
        best, second = first_two(matrix)
        return matrix.gather(1, torch.where(_at(matrix, best), second, best)).flatten()

    def centroid(self, space: Space) -> Float[Tensor, " d"]:
        """Mean of the raw or the unit prototypes."""
        return self.sums["raw" if space == "raw" else "cosine"] / self.num_classes

    def riesz(self, power: float) -> Scalar:
        """Energy of the unit prototypes."""
        return riesz_energy(self.weight, power)

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

    Away from the row's maximum the total is at least twice the term left out, so that subtracting it
    loses one bit at the most; for the maximum itself the sum is formed without it.
    """
    best, _ = first_two(logits)
    is_best = _at(logits, best)
    total = torch.logsumexp(logits, 1, keepdim=True)
    share = torch.where(is_best, -1.0, logits - total)
    without_best = torch.logsumexp(logits.masked_fill(is_best, -torch.inf), 1, keepdim=True)
    return torch.where(is_best, without_best, total + torch.log1p(-share.exp()))


def _at(matrix: Matrix, column: Int[Tensor, "n 1"]) -> Tensor:
    return torch.zeros_like(matrix, dtype=torch.bool).scatter(1, column, value=True)
