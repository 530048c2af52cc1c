"""Scales that a head learns: one parameter for each term whose scale is `Learnable`."""

import torch
from torch import Tensor, nn

from tammes._common.types import Scalar
from tammes.losses._engine.objective_plan import term_keys
from tammes.losses.learnable import Learnable
from tammes.losses.objective import Objective


class LearnedScales(nn.ParameterDict):
    """The learned scales of an objective, by the name of their term: "CosFace", "CosFace_2"."""

    def declare(self, objective: Objective, like: Tensor) -> None:
        """Have the scales of `objective`, and no others; those that stay keep their values."""
        wanted = starting_values(objective)
        for name in set(self) - set(wanted):
            del self[name]
        for name, value in wanted.items():
            if name not in self:
                self[name] = nn.Parameter(torch.full((), value, dtype=like.dtype, device=like.device))

    @torch.no_grad()
    def reset(self, objective: Objective) -> None:
        """Set every scale to its starting value."""
        for name, value in starting_values(objective).items():
            self[name].fill_(value)

    def by_place(self, objective: Objective, dtype: torch.dtype) -> dict[int, Scalar]:
        """The scales in `dtype`, by the place of their term."""
        keys = term_keys(objective)
        return {
            place: self[keys[place]].to(dtype)
            for place, (_, term) in enumerate(objective.weighted_terms)
            if isinstance(term.need.scale, Learnable)
        }


def starting_values(objective: Objective) -> dict[str, float]:
    """The learned scales of an objective by name, with their starting values."""
    scales = zip(term_keys(objective), (term.need.scale for _, term in objective.weighted_terms), strict=True)
    return {key: scale.value for key, scale in scales if isinstance(scale, Learnable)}
