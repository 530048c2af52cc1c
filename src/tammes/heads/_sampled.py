"""Class sampling (Partial FC): each step uses the classes of the batch and a random subset of the others.

The cost of a step is proportional to the sample: drawing it, the statistics, the gradient (sparse, of the
sampled rows only) and, with `RowSGD` or `RowAdamW`, the update. Only R_w reads all prototypes, once per step.

Reference: An et al., "Partial FC: training 10 million identities on a single machine", 2021.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tammes._common import checks
from tammes._common.autograd import transforming
from tammes._common.row_blocks import double
from tammes._common.types import Embeddings, Scalar
from tammes.geometry.sphere import safe_norm
from tammes.losses._engine.batch_loss import Producer
from tammes.losses._engine.labels import MixedLabels
from tammes.losses._engine.plan import Plan, PrototypeSum, Targets, plain_sum
from tammes.losses._engine.statistics import Rivals, Statistics, check_asked
from tammes.losses.scores import Space

Classes = Int[Tensor, " m"]
"""Sampled classes in increasing order."""

Sums = dict[PrototypeSum, Float[Tensor, " d"]]

SUM_ROWS = 1024
"""Rows per block when summing all prototypes: few enough to stay in cache."""


DRAWING = threading.Lock()
"""Held while a draw is numbered. Shared by all samplers, because a module with a lock cannot be copied."""

MARKS = 4096
"""Maximum number of forward passes to remember until the weight changes."""


class ClassSampler(nn.Module):
    """Samples the classes of each step.

    The n-th sample is a function of the seed and n, which are the module's state, so a resumed run continues
    with the same samples. The seed is drawn from torch's generator (`torch.manual_seed`). When activation
    checkpointing recomputes a forward pass, it gets the sample of the original pass.
    """

    def __init__(self, rate: float, weight: nn.Parameter) -> None:
        super().__init__()
        self.rate = checks.within("sample_rate", checks.positive("sample_rate", rate), 0.0, 1.0)
        self.seed = int(torch.randint(2**62, (), device="cpu"))
        self.draws = 0
        self._numbers: dict[int, int] = {}  # draw numbers by mark, since the weight last changed
        self._version = 0
        self._last: Tensor | None = None  # classes of the last sample
        self.attach(weight)

    def attach(self, weight: nn.Parameter) -> None:
        """Register a hook that keeps the gradient of `weight` coalesced. Copies of a parameter lose hooks."""
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(self._coalesce)

    def _coalesce(self, weight: Tensor) -> None:
        coalesce_gradient(weight, self._last)

    def draw(
        self, positives: Int[Tensor, " p"], num_classes: int, stream: int = 0, version: int = 0
    ) -> Classes:
        """Sample `positives` (distinct, increasing) and a fraction `rate` of the other classes.

        Includes at least one other class and at least two classes in total, because losses compare classes.
        All subsets of the others are equally likely. Time and memory are proportional to the sample, not to
        `num_classes`: numpy enumerates all classes only if the sample is a twentieth of them or more. Each
        `stream`, one per class range, draws independently. `version` is that of the weight (see `_number`).
        """
        others = num_classes - len(positives)
        count = min(max(round(self.rate * others), 1, 2 - len(positives)), others)
        random = np.random.default_rng((self.seed, self._number(version), stream))
        ranks = torch.from_numpy(random.choice(others, count, replace=False, shuffle=False))
        ranks = ranks.to(positives.device)
        others_below = positives - torch.arange(len(positives), device=positives.device)
        rest = ranks + torch.searchsorted(others_below, ranks, right=True)
        return torch.cat([positives, rest]).sort().values

    def draw_on_device(
        self, labels: Int[Tensor, " l"], kept: Bool[Tensor, " l"], num_classes: int, version: int = 0
    ) -> Classes:
        """Sample the `kept` ones of `labels` and other classes, without waiting for the device.

        The sample size must therefore follow from shapes: it is that of `draw` for distinct labels. A label
        that is ignored or repeated makes room for one more other class. Costs a few passes over `num_classes`
        integers, negligible on a GPU.
        """
        most = min(len(labels), num_classes)
        others = num_classes - most
        count = most + min(max(round(self.rate * others), 1, 2 - most), others)
        start = int(np.random.default_rng((self.seed, self._number(version))).integers(2**62))
        keys = random_keys(num_classes, start, labels.device)
        present = torch.zeros(num_classes + 1, dtype=torch.bool, device=labels.device)
        present.index_fill_(0, torch.where(kept, labels, num_classes), True)  # the last entry is discarded
        keys.masked_fill_(present[:-1], -1)
        return keys.topk(count, largest=False, sorted=False).indices.sort().values

    def _number(self, version: int) -> int:
        """The number of this draw: the next one, or the original one if a forward pass is recomputed.

        `torch.utils.checkpoint` restores torch's generator before it recomputes a forward pass, so the
        generator's next number identifies the pass. These marks are kept until the weight changes, which
        cannot happen between a forward pass and its backward pass.
        """
        mark = int(torch.randint(2**62, (), device="cpu"))
        with DRAWING:
            if version != self._version:
                self._version, self._numbers = version, {}
            if mark not in self._numbers:
                if torch._C._current_graph_task_id() != -1:
                    raise RuntimeError(
                        "A head with sample_rate was recomputed in the backward pass without restoring "
                        "torch's random state, so it would sample other classes than in the forward pass. "
                        "Use torch.utils.checkpoint with preserve_rng_state=True, the default."
                    )
                if len(self._numbers) == MARKS:
                    del self._numbers[next(iter(self._numbers))]
                self._numbers[mark] = self.draws
                self.draws += 1
            return self._numbers[mark]

    def producer(self, labels: Tensor | MixedLabels, ignore_index: int, produce: Producer) -> Producer:
        """Wrap `produce` to use a new sample of the classes at each call, for the batch of `labels`."""
        if isinstance(labels, Tensor) and labels.ndim == 2 and labels.is_floating_point():
            raise ValueError(
                "Soft targets make every class a target, so none can be left out of the sample. "
                "Pass class indices or MixedLabels, or use a head without sample_rate."
            )

        def produce_sampled(
            embeddings: Embeddings, weight: Tensor, targets: Targets, plan: Plan
        ) -> Statistics:
            columns, kept = columns_of(labels, ignore_index)
            if columns.device.type == "cpu":
                draw = partial(self.draw, columns[:, kept].unique(), len(weight))
            else:
                kept = kept.expand_as(columns).flatten()
                draw = partial(self.draw_on_device, columns.flatten(), kept, len(weight))
            return self.statistics(embeddings, weight, targets, plan, draw=draw, produce=produce)

        return produce_sampled

    def statistics(
        self,
        embeddings: Embeddings,
        weight: Tensor,
        targets: Targets,
        plan: Plan,
        *,
        draw: Callable[..., Classes],
        produce: Producer,
    ) -> "SampledStatistics":
        """Statistics by `produce` of a new sample of the classes, by `draw` with the weight's version."""
        self._last = classes = draw(version=0 if weight.is_inference() else weight._version)
        totals = sums_of_all(weight.detach(), plan.centroids, embeddings.dtype)
        return sampled(embeddings, weight, targets, plan, classes=classes, totals=totals, produce=produce)

    def get_extra_state(self) -> Int[Tensor, "2"]:
        return torch.tensor([self.seed, self.draws], device="cpu")

    def set_extra_state(self, state: Any) -> None:
        if not isinstance(state, Tensor) or state.shape != (2,) or state.is_floating_point():
            raise ValueError(f"The state of a sampler must be a seed and a number of draws, got {state!r}.")
        self.seed, self.draws = state.tolist()

    def _load_from_state_dict(self, state_dict: Any, prefix: Any, *args: Any, **options: Any) -> None:
        """A checkpoint of a head without sampling has no sampler state: keep the current one."""
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *args, **options)

    def extra_repr(self) -> str:
        return f"{self.rate}"


def sums_of_all(weight: Tensor, which: Iterable[PrototypeSum], dtype: torch.dtype) -> Sums:
    """Sums over the rows of `weight`, block by block in float64; of class means if a class has several.

    Recomputed at every step: there is nothing to save in a checkpoint, and nothing that becomes stale when an
    optimizer, a projection or a user changes the weight.
    """
    totals = {one: double(weight.new_zeros(weight.shape[-1])) for one in which}
    per_class = weight.shape[1:-1].numel()
    for part in weight.view(-1, weight.shape[-1]).split(SUM_ROWS) if totals else ():
        rows = part.to(dtype)
        for one, total in totals.items():
            more = rows.sum(0) if one.space == "raw" else safe_norm(rows).reciprocal().squeeze(1) @ rows
            totals[one] = total + more
    return {one: (total / per_class).to(dtype) for one, total in totals.items()}


def columns_of(
    labels: Tensor | MixedLabels, ignore_index: int
) -> tuple[Int[Tensor, "t n"], Bool[Tensor, " n"]]:
    """The labels of a batch, t per sample, and whether each sample counts, that is, has no `ignore_index`."""
    columns = torch.stack(labels[:2]) if isinstance(labels, MixedLabels) else labels[None]
    return columns.long(), (columns != ignore_index).all(0)


def random_keys(count: int, start: int, device: torch.device) -> Int[Tensor, " count"]:
    """Pseudorandom integers in [0, 2^63), identical on all devices: SplitMix64 of a counter.

    Reference: Steele et al., "Fast splittable pseudorandom number generators", 2014.
    """
    keys = torch.arange(count, device=device).mul_(_signed(0x9E3779B97F4A7C15)).add_(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        keys ^= (keys >> shift) & (2 ** (64 - shift) - 1)  # an unsigned shift
        keys *= _signed(factor)
    return keys & (2**63 - 1)


def _signed(constant: int) -> int:
    return constant - 2**64 if constant >= 2**63 else constant


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledStatistics(Statistics):
    """`Statistics` restricted to the sampled classes, but with the centroid of all prototypes."""

    centroids: Sums

    def centroid(self, space: Space) -> Float[Tensor, " d"]:
        check_asked(self.centroids, space)
        return self.centroids[plain_sum(space)]


def sampled(
    embeddings: Embeddings,
    weight: Tensor,
    targets: Targets,
    plan: Plan,
    *,
    classes: Classes,
    totals: Sums,
    produce: Producer,
) -> SampledStatistics:
    """Statistics by `produce` of the rows `classes` of `weight`; targets and rivals keep their class indices.

    `totals` are the sums of all prototypes; gradients flow only to the sampled ones. A target outside of the
    sample belongs to an ignored row and is replaced by an arbitrary class.
    """
    rows = weight[classes] if transforming() else _Rows.apply(weight, classes)
    places = torch.searchsorted(classes, targets).clamp(max=len(classes) - 1)

    def named(inner: Statistics, targets: Targets, plan: Plan) -> SampledStatistics:
        given = {field.name: getattr(inner, field.name) for field in fields(inner)}
        given |= {"targets": targets, "class_weight": plan.class_weight, "logits": plan.logits}
        given["rivals"] = {space: Rivals(value, classes[at]) for space, (value, at) in inner.rivals.items()}
        centroids: Sums = {
            which: (total + (inner.sums[which] - inner.sums[which].detach())) / len(weight)
            for which, total in totals.items()
        }
        return SampledStatistics(**given, centroids=centroids)

    def loss_of_rows(inner: Statistics, some: slice) -> Scalar:
        assert plan.loss_of_rows is not None
        return plan.loss_of_rows(named(inner, targets[some], plan.of_rows(some)), some)

    inner_plan = plan.of_classes(classes)
    if plan.loss_of_rows is not None:
        inner_plan = inner_plan._replace(loss_of_rows=loss_of_rows)
    return named(produce(embeddings, rows, places, inner_plan), targets, plan)


class _Rows(torch.autograd.Function):
    """Some rows of a matrix. The gradient is sparse, so no dense gradient of the matrix is allocated."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, classes: Tensor) -> Tensor:
        ctx.save_for_backward(classes)
        ctx.shape = weight.shape
        return weight[classes]

    @staticmethod
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        (classes,) = ctx.saved_tensors
        return _sparse(classes[None], grads[0], ctx.shape), None


def _sparse(classes: Int[Tensor, "1 m"], rows: Float[Tensor, "m *row"], shape: torch.Size) -> Tensor:
    return torch.sparse_coo_tensor(classes, rows, shape, is_coalesced=True, check_invariants=False)


def coalesce_gradient(weight: Tensor, last: Classes | None = None) -> None:
    """Coalesce the gradient again after accumulation, which concatenates and clears the coalesced flag.

    Reading the classes would wait for the device. Those of the `last` sample are known to be in order.
    """
    grad = weight.grad
    if grad is None or not grad.is_sparse or grad.is_coalesced():
        return
    if grad.requires_grad:  # create_graph=True: use operations that autograd records
        weight.grad = grad.coalesce()
        return
    classes = grad._indices()
    known = last is not None and classes.data_ptr() == last.data_ptr() and classes.shape[1] == len(last)
    increasing = known or (classes[0, 1:] > classes[0, :-1]).all()
    weight.grad = _sparse(classes, grad._values(), grad.shape) if increasing else grad.coalesce()
