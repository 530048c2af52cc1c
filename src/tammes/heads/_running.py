"""Running statistics of losses, such as AdaFace's mean norm: buffers of the head, saved with it."""

from typing import Any

import torch
from torch import Tensor, nn

from tammes._common.autograd import transforming
from tammes._common.types import PerSample
from tammes.heads._forward_marks import ForwardMarks
from tammes.losses._engine.batch_values import BatchSummary, States, advanced, initial_states, noise_for
from tammes.losses._engine.objective_plan import term_keys
from tammes.losses.objective import Objective


class RunningState(nn.Module):
    """One buffer per running statistic of the objective's terms, named after term and statistic.

    In training mode, every forward pass first includes its batch. In eval mode, the statistics are unchanged
    and random margins take their mean. A forward pass that activation checkpointing recomputes reuses its
    original values.
    """

    def __init__(self) -> None:
        super().__init__()
        self._marks: ForwardMarks[States] = ForwardMarks()
        self._values: dict[str, float] = {}  # initial values for buffers that get storage later

    def declare(self, objective: Objective, like: Tensor) -> None:
        """Register the buffers of `objective` and drop all others; buffers that stay keep their values."""
        wanted = _names(objective)
        for name in set(self._buffers) - set(wanted):
            del self._buffers[name], self._values[name]
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        for name, value in wanted.items():
            if name not in self._buffers:
                self._values[name] = value
                self.register_buffer(name, torch.full((), value, dtype=dtype, device=like.device))

    def reset(self) -> None:
        """Reset all statistics."""
        self._marks = ForwardMarks()
        for name, buffer in self._buffers.items():
            assert buffer is not None
            buffer.fill_(self._values[name])

    def advance(
        self, objective: Objective, batch: BatchSummary, weight: Tensor
    ) -> tuple[States, PerSample | None]:
        """The statistics to use for `batch`, and noise for its rows; in training mode they include it."""
        if not self.training:
            noise = torch.zeros_like(batch.feature_norms)
            return self.states(objective), noise if _reads_noise(objective) else None
        if torch.compiler.is_compiling() or transforming():
            return self._step(objective, batch), noise_for(objective, batch.feature_norms)
        version, rows = 0 if weight.is_inference() else weight._version, len(batch.feature_norms)
        states = self._marks.recall(version, rows, lambda: self._step(objective, batch))
        return states, noise_for(
            objective, batch.feature_norms
        )  # drawn after the mark, from the same generator

    def keep(self, objective: Objective, states: States) -> None:
        """Store statistics that the pass over the classes has changed; in training mode."""
        if self.training:
            self._store(objective, states)

    def _step(self, objective: Objective, batch: BatchSummary) -> States:
        """Include `batch` in the statistics."""
        states = advanced(objective, self.states(objective), batch)
        self._store(objective, states)
        return states

    def _store(self, objective: Objective, states: States) -> None:
        if transforming():  # no side effects under torch.func
            return
        keys = term_keys(objective)
        for place, state in states.items():
            for name, value in state.items():
                if torch.compiler.is_compiling():  # whose backward would read a changed buffer again
                    setattr(self, f"{keys[place]}_{name}", value.detach())
                else:
                    getattr(self, f"{keys[place]}_{name}").copy_(value)

    def states(self, objective: Objective) -> States:
        """The current statistics, by the place of their term."""
        keys = term_keys(objective)
        return {
            place: {name: getattr(self, f"{keys[place]}_{name}").clone() for name in state}
            for place, state in initial_states(objective).items()
        }

    def _apply(self, fn: Any, recurse: bool = True) -> "RunningState":
        """Move like any module, but keep the dtype: in half precision a running mean would stop changing."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            assert old is not None
            assert new is not None
            if new.is_meta and not old.is_meta:
                self._values[name] = old.item()
            if old.is_meta and not new.is_meta:
                self._buffers[name] = torch.full_like(new, self._values[name], dtype=old.dtype)
            elif new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: Any, *args: Any, **options: Any) -> None:
        """Keep the current statistics if the checkpoint is of a head with another loss and has none."""
        for name, buffer in self._buffers.items():
            state_dict.setdefault(prefix + name, buffer)
        super()._load_from_state_dict(state_dict, prefix, *args, **options)


def _reads_noise(objective: Objective) -> bool:
    return any(term.need.noise for _, term in objective.weighted_terms)


def _names(objective: Objective) -> dict[str, float]:
    """The buffers of an objective by name, with their starting values."""
    keys = term_keys(objective)
    return {
        f"{keys[place]}_{name}": value
        for place, state in initial_states(objective).items()
        for name, value in state.items()
    }
