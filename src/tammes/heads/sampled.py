"""A share of the classes each step (Partial FC): all that the batch has, and some of the others at random.

What a step costs is what the sample costs: the draw, the statistics, the gradient (sparse, of the sampled
rows alone) and, with `RowSGD` or `RowAdamW`, the update.

Reference: An et al., "Partial FC: training 10 million identities on a single machine", 2021.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tammes import checks
from tammes.geometry.sphere import normalize
from tammes.geometry.tiles import double
from tammes.losses.evaluate import Producer
from tammes.losses.labels import MixedLabels
from tammes.losses.scores import Space
from tammes.losses.statistics import Plan, Rivals, Statistics, Targets
from tammes.types import Embeddings, Prototypes

Classes = Int[Tensor, " m"]
"""The classes of a sample, in increasing order."""

Sums = dict[Space, Float[Tensor, " d"]]

SUM_ROWS = 8192
"""Rows per block where all prototypes are summed."""


class ClassSampler(nn.Module):
    """Draws the classes of a step, and keeps what a sample cannot tell: the sums of all prototypes.

    The n-th draw is a function of a seed and n, which are the module's state: a resumed run draws what an
    uninterrupted one would have drawn. The seed is torch's (`torch.manual_seed`).
    """

    def __init__(self, rate: float, weight: nn.Parameter) -> None:
        super().__init__()
        self.rate = checks.within("sample_rate", checks.positive("sample_rate", rate), 0.0, 1.0)
        self.seed = int(torch.randint(2**62, ()))
        self.draws = 0
        self.sums = RunningSums()
        self.register_load_state_dict_pre_hook(_before_loading)
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(coalesce_gradient)

    def draw(self, positives: Int[Tensor, " p"], num_classes: int, stream: int = 0) -> Classes:
        """`positives`, which are distinct and increasing, and a share `rate` of the others: one at least.

        Every set of others is equally likely. Time and memory follow the sample, not `num_classes`: numpy
        picks from a set, and from a list of all only where the sample is a twentieth of them or more.
        Different `stream`s draw independently: one for each slice of the classes.
        """
        others = num_classes - len(positives)
        count = min(max(round(self.rate * others), 1), others)
        random = np.random.default_rng((self.seed, self.draws, stream))
        self.draws += 1
        ranks = torch.from_numpy(random.choice(others, count, replace=False, shuffle=False))
        ranks = ranks.to(positives.device)
        others_below = positives - torch.arange(len(positives), device=positives.device)
        rest = ranks + torch.searchsorted(others_below, ranks, right=True)
        return torch.cat([positives, rest]).sort().values

    def producer(self, labels: Tensor | MixedLabels, ignore_index: int, produce: Producer) -> Producer:
        """`produce` over a sample of the classes, drawn anew at every call, for the batch of `labels`."""
        if isinstance(labels, Tensor) and labels.ndim == 2 and labels.is_floating_point():
            raise ValueError(
                "Soft targets make every class a target, so that none can be left out of a sample. "
                "Give class indices or MixedLabels, or a head without sample_rate."
            )

        def produce_sampled(
            embeddings: Embeddings, weight: Prototypes, targets: Targets, plan: Plan
        ) -> Statistics:
            positives = classes_of(labels, ignore_index)
            return self.statistics(embeddings, weight, targets, plan, positives=positives, produce=produce)

        return produce_sampled

    def statistics(
        self,
        embeddings: Embeddings,
        weight: Prototypes,
        targets: Targets,
        plan: Plan,
        *,
        positives: Classes,
        produce: Producer,
        stream: int = 0,
    ) -> "SampledStatistics":
        """What `produce` makes of a new sample of the classes, among them `positives`."""
        classes = self.draw(positives, len(weight), stream)
        totals = self.sums.of(weight, plan.sums)
        if totals and torch.is_grad_enabled() and weight.requires_grad:
            self.sums.watch(weight, classes)
        return sampled(embeddings, weight, targets, plan, classes=classes, totals=totals, produce=produce)

    def get_extra_state(self) -> Int[Tensor, "2"]:
        return torch.tensor([self.seed, self.draws])

    def set_extra_state(self, state: Any) -> None:
        if not isinstance(state, Tensor) or state.shape != (2,) or state.is_floating_point():
            raise ValueError(f"A sampler's state is a seed and a number of draws, got {state!r}.")
        self.seed, self.draws = state.tolist()

    def extra_repr(self) -> str:
        return f"{self.rate}"


def _before_loading(sampler: ClassSampler, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """The prototypes will be others. A head that did not sample left no state: the own one stays."""
    state_dict.setdefault(f"{prefix}_extra_state", sampler.get_extra_state())
    sampler.sums.forget()


class RunningSums:
    """Sums of all raw and of all unit prototypes, kept true from the few rows that move between two steps.

    Rows are watched from the forward that sampled them until the weight has changed; then what they add
    now replaces what they added before. All are summed, in blocks, on the first use, after `forget` and
    when the weight is another tensor. It trusts that a step moves only rows that have been sampled.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Sum all prototypes again at the next use; for whoever changed other rows than the sampled."""
        self._identity: Any = None

    def of(self, weight: Prototypes, spaces: tuple[Space, ...]) -> Sums:
        """The sums over all rows of `weight` as it is now, for each of `spaces`."""
        weight = weight.detach()
        identity = (weight.data_ptr(), weight.dtype, weight.shape, spaces)
        if identity != self._identity:
            self._identity, self._spaces = identity, spaces
            self._totals = _sums(weight, spaces)
            self._watch_none(weight)
        elif weight._version != self._version:
            self._totals = self._totals + _sums(weight[self._watched], spaces) - self._counted
            self._watch_none(weight)
        return dict(zip(spaces, self._totals, strict=True))

    def watch(self, weight: Prototypes, classes: Classes) -> None:
        """Expect the rows `classes` to move, as well as those watched since the last change."""
        new = classes[~torch.isin(classes, self._watched)]
        self._counted = self._counted + _sums(weight.detach()[new], self._spaces)
        self._watched = torch.cat([self._watched, new])

    def _watch_none(self, weight: Prototypes) -> None:
        self._version = weight._version
        self._watched = torch.empty(0, dtype=torch.long, device=weight.device)
        self._counted = torch.zeros_like(self._totals)


def _sums(rows: Prototypes, spaces: tuple[Space, ...]) -> Float[Tensor, "s d"]:
    """Sums of the raw and the unit rows, in float64: a million small changes must not add up to one."""
    totals = double(rows.new_zeros(len(spaces), rows.shape[1]))
    for part in map(double, rows.split(SUM_ROWS)):
        for total, space in zip(totals, spaces, strict=True):
            total += (part if space == "raw" else normalize(part)).sum(0)
    return totals


def classes_of(labels: Tensor | MixedLabels, ignore_index: int) -> Classes:
    """The classes that a batch has, in increasing order; rows with `ignore_index` have none."""
    columns = torch.stack(labels[:2]) if isinstance(labels, MixedLabels) else labels[None]
    kept = (columns != ignore_index).all(0)
    return columns[:, kept].long().unique()


@dataclass(frozen=True, eq=False)
class SampledStatistics(Statistics):
    """`Statistics` of a sample as if there were no other classes, but with the centroid of all."""

    centroids: Sums

    def centroid(self, space: Space) -> Float[Tensor, " d"]:
        return self.centroids["raw" if space == "raw" else "cosine"]


def sampled(
    embeddings: Embeddings,
    weight: Prototypes,
    targets: Targets,
    plan: Plan,
    *,
    classes: Classes,
    totals: Sums,
    produce: Producer,
) -> SampledStatistics:
    """What `produce` makes of the rows `classes` of `weight`, with targets and rivals under their own names.

    `totals` are the sums of all prototypes, of which the gradient sees the sampled ones. A target outside
    of the sample can only be that of an ignored row: it is given some other class.
    """
    rows = _Rows.apply(weight, classes)
    places = torch.searchsorted(classes, targets).clamp(max=len(classes) - 1)
    inner = produce(embeddings, rows, places, plan)
    given = {field.name: getattr(inner, field.name) for field in fields(inner)}
    given["targets"] = targets
    given["rivals"] = {space: Rivals(value, classes[at]) for space, (value, at) in inner.rivals.items()}
    centroids: Sums = {
        space: (totals[space].to(part.dtype) + (part - part.detach())) / len(weight)
        for space, part in inner.sums.items()
    }
    return SampledStatistics(**given, centroids=centroids)


class _Rows(torch.autograd.Function):
    """Some rows of a matrix; the gradient is sparse, so that no second matrix is ever made."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, classes: Tensor) -> Tensor:
        ctx.save_for_backward(classes)
        ctx.shape = weight.shape
        return weight[classes]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        (classes,) = ctx.saved_tensors
        return _sparse(classes[None], grads[0], ctx.shape), None


def _sparse(classes: Int[Tensor, "1 m"], rows: Float[Tensor, "m d"], shape: torch.Size) -> Tensor:
    return torch.sparse_coo_tensor(classes, rows, shape, is_coalesced=True, check_invariants=False)


def coalesce_gradient(weight: Tensor) -> None:
    """After accumulation, which drops the mark of a coalesced gradient and appends a second to a first."""
    grad = weight.grad
    if grad is None or not grad.is_sparse or grad.is_coalesced():
        return
    classes = grad._indices()
    increasing = (classes[0, 1:] > classes[0, :-1]).all()
    weight.grad = _sparse(classes, grad._values(), grad.shape) if increasing else grad.coalesce()
