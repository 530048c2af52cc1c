"""What a head is to torch: its parameters and buffers, its objective, copies, moves, casts and loads."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tammes.heads._running import RunningState
from tammes.heads._sampled import ClassSampler
from tammes.heads._scales import LearnedScales, starting_values
from tammes.heads._stream.workspace import Workspace
from tammes.losses._engine.batch_loss import check_per_class, class_value_tensors, working_dtype
from tammes.losses._engine.batch_values import reads_the_batch
from tammes.losses._text import ObjectiveLike, as_objective
from tammes.losses.objective import Objective


class Goal(NamedTuple):
    """An objective and its per-class parameters, in one attribute so that threads swap both atomically."""

    objective: Objective
    class_values: dict[tuple[int, str], Tensor]
    class_counts: Tensor | None  # the counts that `class_values` were computed from


class HeadState(nn.Module):
    """The state of a `PrototypeHead`, which computes with it. The constructor of the head sets it up."""

    weight: nn.Parameter
    class_counts: Tensor | None
    class_weight: Tensor | None
    num_classes: int
    sampler: ClassSampler | None
    running: RunningState | None
    scales: LearnedScales | None
    _kept_from_meta: dict[str, Tensor]
    _workspace: Workspace
    _goal: "Goal"

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: no scratch memory, and the objective in place of the internal `Goal`."""
        state = self.__dict__.copy()
        del state["_workspace"]
        state["_goal"] = self.objective
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._workspace = Workspace()
        for name in {"running", "scales"} - set(self._modules):
            setattr(self, name, None)
        self.objective = state["_goal"]
        if self.sampler is not None:
            self.sampler.attach(self.weight)

    def _register_class_counts(self, counts: Tensor | Sequence[float] | None) -> None:
        if counts is not None:
            counts = check_per_class("class_counts", counts, self.num_classes)
        self._register_values("class_counts", counts)

    def _register_class_weight(self, weight: Tensor | Sequence[float] | None) -> None:
        if weight is not None:
            weight = check_per_class("class_weight", weight, self.num_classes, zero=True)
            # Floating point even if given as integers: an integer buffer would truncate loaded fractions.
            weight = weight.to(working_dtype(weight))
        self._register_values("class_weight", weight)

    def _register_values(self, name: str, values: Tensor | None) -> None:
        """Register a buffer on the prototypes' device."""
        if values is not None and self.weight.is_meta:
            self._kept_from_meta[name] = values.cpu().clone()
        self.register_buffer(name, None if values is None else values.to(self.weight.device, copy=True))

    @property
    def objective(self) -> Objective:
        """The objective to minimize; assign a new one at any time, for example to warm up a margin."""
        return self._goal.objective

    @objective.setter
    def objective(self, objective: ObjectiveLike) -> None:
        self._goal = self._goal_of(as_objective(objective))
        self._declare(self._goal.objective)

    def _declare(self, objective: Objective) -> None:
        """Have a place for running statistics, random margins and learned scales, if there are some."""
        wanted = {
            "running": (RunningState, reads_the_batch(objective)),
            "scales": (LearnedScales, starting_values(objective)),
        }
        for name, (kind, has_some) in wanted.items():
            if getattr(self, name) is None and has_some:
                delattr(self, name)
                setattr(self, name, kind().train(self.training))
            elif not has_some:
                delattr(self, name)
                setattr(self, name, None)
            if has_some:
                getattr(self, name).declare(objective, self.weight)

    def _goal_of(self, objective: Objective) -> Goal:
        counts = self.class_counts
        if counts is not None and counts.is_meta:
            counts = self._kept_from_meta["class_counts"]
        values = class_value_tensors(objective, self.num_classes, counts, self.weight)
        return Goal(objective, values, self.class_counts)

    def _current_goal(self) -> Goal:
        """The goal, rebuilt if a framework (Hugging Face, FSDP) has replaced parameters or buffers."""
        goal = self._goal
        if goal.class_values and not torch.compiler.is_compiling():
            moved = any(values.device != self.weight.device for values in goal.class_values.values())
            if moved or goal.class_counts is not self.class_counts:
                self._goal = goal = self._goal_of(goal.objective)
        return goal

    def _refresh_class_values(self) -> None:
        """Recompute per-class values after a move, cast or load; they are not part of the `state_dict`."""
        self._goal = self._goal_of(self._goal.objective)

    def _apply(self, fn: Any, recurse: bool = True) -> "HeadState":
        """Move or cast like any module, except that a cast to half precision does not round the margins."""
        weight = self.weight
        before = {name: getattr(self, name) for name in ("class_counts", "class_weight")}
        super()._apply(fn, recurse)
        self._keep_from_meta(before)
        self._refresh_class_values()
        self._attach_sampler(weight)
        return self

    @torch.no_grad()
    def _keep_from_meta(self, before: dict[str, Tensor | None]) -> None:
        """Buffers lose their values on the meta device: keep a copy until they get storage again."""
        for name, old in before.items():
            new = getattr(self, name)
            if old is None or old.is_meta == new.is_meta:
                continue
            if new.is_meta:
                self._kept_from_meta[name] = old.cpu().clone()
            else:
                new.copy_(self._kept_from_meta[name])

    def _attach_sampler(self, before: nn.Parameter) -> None:
        """Reattach the sampler's hooks if `weight` has been replaced by a new parameter."""
        if self.sampler is not None and self.weight is not before:
            self.sampler.attach(self.weight)

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        weight = self.weight
        super()._load_from_state_dict(*args, **options)
        self._refresh_class_values()  # LDAM's margins depend on the class counts
        self._attach_sampler(weight)
