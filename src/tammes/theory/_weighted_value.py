"""The value of an objective from statistics, weighted by class counts."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tammes._common.types import PerClass, Scalar
from tammes.losses._engine.batch_loss import Weighting, check_per_class, class_value_tensors, evaluate_terms
from tammes.losses._engine.batch_values import reads_the_batch
from tammes.losses._engine.objective_plan import ClassValues, plan_of
from tammes.losses._engine.plan import Plan
from tammes.losses._engine.statistics import Statistics
from tammes.losses.objective import Objective

Counts = Sequence[int] | Sequence[float]
"""Number of samples per class."""


def checked_counts(counts: Counts, k: int) -> PerClass:
    """`counts` as a tensor, if it has one positive entry for each of k classes."""
    return check_per_class("counts", counts, k).to(torch.float64)


class WeightedValue(NamedTuple):
    """An objective for equally many samples of each class, in order, with its classes weighted by counts.

    Everything that does not depend on the points is computed once, since descent evaluates it often.
    """

    objective: Objective
    plan: Plan
    weighting: Weighting
    class_values: ClassValues

    @classmethod
    def of(cls, objective: Objective, counts: PerClass, per_class: int = 1) -> "WeightedValue":
        """For an objective of the angles alone; `counts` are also LDAM's class counts."""
        for _, term in objective.weighted_terms:
            if term.need.feature_norms or reads_the_batch(term):
                raise ValueError(
                    f"{term} has no fixed optimum: it depends on feature norms, earlier batches or chance, "
                    "or re-weights wrong classes. Use a loss of the angles, such as ArcFace."
                )
        weights = counts.repeat_interleave(per_class) / per_class
        class_values = class_value_tensors(objective, len(counts), counts, counts)
        weighting = Weighting(class_weight=None, sample_weight=weights, kept=weights > 0)
        return cls(objective, plan_of(objective, class_values=class_values), weighting, class_values)

    def __call__(self, statistics: Statistics) -> Scalar:
        """The value for `statistics` made by `plan`."""
        value, _ = evaluate_terms(
            self.objective, statistics, [None], self.weighting, self.class_values, measures=False
        )
        return value


def check_reduced(objective: Objective) -> None:
    """Check that `objective` has a single value per batch, not one per sample."""
    for _, term in objective.weighted_terms:
        if getattr(term, "reduction", "mean") == "none":
            raise ValueError(f'{term} has no single value: reduction="none". Use "mean" or "lse".')
