"""Batch-dependent inputs of terms: running statistics, noise and thresholds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common.types import Embeddings, PerSample, Scalar
from tammes.geometry.sphere import normalize, safe_norm
from tammes.losses._engine.labels import Labelling
from tammes.losses._engine.objective_plan import ClassValues
from tammes.losses._engine.plan import Plan, Targets, TermState
from tammes.losses._engine.statistics import Statistics
from tammes.losses.objective import Objective, SampleTerm

States = dict[int, TermState]
"""The running statistics of each term that has any, by the index of the term."""


class BatchSummary(NamedTuple):
    """Summary of a batch before the pass over the classes, without gradients."""

    targets: Targets | None  # labels; None for soft targets
    target: Float[Tensor, "n t"] | None  # cosine to the prototype of each label
    shares: Float[Tensor, "n t"]  # share of each label in its sample; 0 for ignored rows
    feature_norms: PerSample
    num_classes: int

    def mean_target(self) -> Scalar:
        """Mean target cosine over the rows that are not ignored; NaN if all are."""
        assert self.target is not None
        return (self.shares * self.target).sum() / self.shares.sum()

    def median_target(self) -> Scalar:
        """Target cosine of the median angle, weighted by the shares; NaN if all rows are ignored."""
        assert self.target is not None
        cosines, order = self.target.flatten().sort(descending=True)
        below = self.shares.flatten()[order].cumsum(0)
        place = (below < below[-1] / 2).sum().clamp(max=len(cosines) - 1)
        return torch.where(below[-1] > 0, cosines.gather(0, place[None])[0], torch.nan)

    def mean_and_std_of_norms(self) -> tuple[Scalar, Scalar]:
        """Mean and standard deviation, as `torch.std`, of the norms of the rows that are not ignored."""
        kept = (self.shares.sum(1) > 0).to(self.feature_norms.dtype)
        mean = (kept * self.feature_norms).sum() / kept.sum()
        square = (kept * (self.feature_norms - mean).square()).sum() / (kept.sum() - 1)
        return mean, square.sqrt()


class Memory(NamedTuple):
    """Where running statistics live between batches."""

    advance: Callable[[Objective, BatchSummary], tuple[States, PerSample | None]]
    """The running statistics with a batch included, and noise for its rows if a term reads some."""

    keep: Callable[[Objective, States], None]
    """Store running statistics that the pass over the classes has changed, for the next batch."""


def _afresh(objective: Objective, batch: BatchSummary) -> tuple[States, PerSample | None]:
    """Statistics that start with this batch."""
    like = batch.feature_norms
    states: States = {
        place: {name: torch.full_like(like[0], value) for name, value in state.items()}
        for place, state in initial_states(objective).items()
    }
    return advanced(objective, states, batch), noise_for(objective, like)


def _forget(objective: Objective, states: States) -> None:
    """There is no next batch."""


WITHOUT_MEMORY = Memory(_afresh, _forget)
"""For losses that are called without a head."""


def initial_states(objective: Objective) -> dict[int, Mapping[str, float]]:
    """The initial values of all running statistics, by the index of their term."""
    states = {
        place: term.initial_state()
        for place, (_, term) in enumerate(objective.weighted_terms)
        if isinstance(term, SampleTerm)
    }
    return {
        place: state for place, state in states.items() if state
    }  # torch.compile does not support := in comprehensions


def advanced(objective: Objective, states: States, batch: BatchSummary) -> States:
    """The running statistics with `batch` included; those that are undefined for the batch are unchanged."""
    result: States = {}
    for place, state in states.items():
        term = objective.weighted_terms[place][1]
        assert isinstance(term, SampleTerm)
        result[place] = _where_finite(term.next_state(state, batch), state)
    return result


def noise_for(objective: Objective, like: PerSample) -> PerSample | None:
    """One standard normal number per row from torch's CPU generator, if a term reads it."""
    if not any(term.need.noise for _, term in objective.weighted_terms):
        return None
    return torch.randn(len(like), dtype=like.dtype).to(like.device)


def reads_the_batch(objective: Objective) -> bool:
    """Whether a term needs `complete`: it has running statistics, noise, a map or a scale of its own."""
    needs = [term.need for _, term in objective.weighted_terms]
    return bool(initial_states(objective)) or any(
        need.noise or need.rival_map is not None or need.scale == "adaptive" for need in needs
    )


def complete(
    plan: Plan, objective: Objective, batch: BatchSummary, class_values: ClassValues, memory: Memory
) -> Plan:
    """`plan` with the running statistics, the noise, the thresholds and the scales of this batch."""
    _check_labels(objective, batch)
    states, noise = memory.advance(objective, batch)
    logits = dict(plan.logits)
    for place, (_, term) in enumerate(objective.weighted_terms):
        need = term.need
        changes: dict[str, Any] = {}
        if need.rival_map is not None:
            assert isinstance(term, SampleTerm)
            own = {name: table for (other, name), table in class_values.items() if other == place}
            thresholds = _thresholds(term, batch, own) if need.rival_map.thresholded else None
            read = need.rival_map.reads_state
            changes |= {"threshold": thresholds, "parameter": states[place][read] if read else None}
        if need.scale == "adaptive":
            assert isinstance(term, SampleTerm)
            changes["scale"] = term.adaptive_scale(states.get(place, {}), batch.num_classes)
        if changes:
            logits[need.rest(place)] = replace(logits[need.rest(place)], **changes)
    return plan._replace(logits=logits, noise=noise, states=states)


@torch.no_grad()
def observed(
    objective: Objective, statistics: Statistics, shares: list[Tensor | None], kept: Tensor
) -> States:
    """The running statistics of terms that learn from the pass over the classes, after this one."""
    states: States = {}
    for place, state in statistics.states.items():
        term = objective.weighted_terms[place][1]
        assert isinstance(term, SampleTerm)
        if type(term).observe is SampleTerm.observe:
            continue
        readings = statistics.readings(term.need, place)
        columns = shares_of(shares, kept, statistics.target[term.need.space]).unbind(1)
        new = term.observe(state, list(zip(readings, columns, strict=True)))
        states[place] = _where_finite(new, state)
    return states


def _where_finite(new: TermState, old: TermState) -> TermState:
    """The `new` statistics, or the `old` one where a batch leaves a statistic undefined."""
    return {name: torch.where(new[name].isfinite(), new[name], value) for name, value in old.items()}


def _check_labels(objective: Objective, batch: BatchSummary) -> None:
    """Soft targets make every class the label, so logits must not depend on the label."""
    for place in initial_states(objective) if batch.targets is None else ():
        term = objective.weighted_terms[place][1]
        if term.need.scale == "adaptive":
            raise ValueError(
                f"{term.text_name} follows the angle to the label, which soft targets (n, k) do not have. "
                "Pass class indices or MixedLabels."
            )
    for _, term in objective.weighted_terms:
        rival_map = term.need.rival_map
        if batch.targets is None and rival_map is not None and rival_map.thresholded:
            raise ValueError(
                f"{term.text_name} weights wrong classes by the label, so soft targets (n, k) would cost "
                "k times as much. Pass class indices or MixedLabels."
            )


def _thresholds(term: SampleTerm, batch: BatchSummary, own: Mapping[str, Tensor]) -> Float[Tensor, "n t"]:
    """The threshold of each row for each of its labels."""
    assert batch.target is not None
    assert batch.targets is not None
    columns = zip(batch.target.unbind(1), batch.targets.unbind(1), strict=True)
    parts = [
        term.threshold(target, **{name: table[labels] for name, table in own.items()})
        for target, labels in columns
    ]
    return torch.stack(parts, 1)


@torch.no_grad()
def summary_of(embeddings: Embeddings, weight: Tensor, marks: Labelling) -> BatchSummary:
    """The summary of a batch whose labels all have their prototypes in `weight`."""
    norms = safe_norm(embeddings)
    if marks.targets is None:
        return BatchSummary(None, None, torch.ones_like(norms), norms.squeeze(1), len(weight))
    target = target_cosines(embeddings, weight, marks.targets)
    shares = shares_of(marks.shares, marks.kept, target)
    return BatchSummary(marks.targets, target, shares, norms.squeeze(1), len(weight))


def target_cosines(embeddings: Embeddings, weight: Tensor, targets: Targets) -> Float[Tensor, "n t"]:
    """Cosine of each embedding and the prototype of each of its labels."""
    rows = normalize(weight[targets].to(embeddings.dtype))
    if weight.ndim == 3:  # several prototypes per class: use the most similar one
        return (rows * normalize(embeddings)[:, None, None]).sum(-1).amax(-1)
    return (rows * normalize(embeddings)[:, None]).sum(-1)


def shares_of(shares: list[Tensor | None], kept: Tensor, like: Float[Tensor, "n t"]) -> Float[Tensor, "n t"]:
    """Share of each label in its sample; 0 for ignored rows."""
    parts = [torch.ones_like(like[:, 0]) if share is None else share.to(like) for share in shares]
    return torch.stack(parts, 1) * kept[:, None]
