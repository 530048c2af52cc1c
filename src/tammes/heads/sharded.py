"""`ShardedPrototypeHead`: prototypes sharded by class across the ranks of a process group.

Each rank owns a slice of the prototypes. The embeddings of all ranks are gathered, every rank computes the
statistics of its slice, and a few numbers per sample are merged: communication does not grow with k.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from jaxtyping import Bool, Int
from torch import Tensor, nn

from tammes._common import checks, tensor_checks
from tammes._common.autograd import transforming
from tammes._common.types import Embeddings, Labels, Prototypes, Scalar, Similarities
from tammes.geometry.sphere import safe_norm
from tammes.heads._centers import class_similarities, dominant_centers
from tammes.heads._head_state import Goal
from tammes.heads._initial_prototypes import packed_prototypes, random_rows
from tammes.heads._ranks.collectives import (
    Group,
    Sizes,
    all_gather,
    gather_numbers,
    mean_gradient,
    own_rows_of_columns,
    own_samples,
    reduce,
    shared,
    sum_over_ranks,
)
from tammes.heads._ranks.global_batch import Forecast, GlobalLabels, Meeting, OwnLabels, gather_batch
from tammes.heads._ranks.handshake import DTYPES, Standing, agree, described, digest, shard_digest
from tammes.heads._ranks.merged_statistics import Slice, class_slice, reduce_statistics
from tammes.heads._ranks.pairwise_ring import ring_class_margin, ring_energy
from tammes.heads._sampled import ClassSampler, SampledStatistics, Sums
from tammes.heads._stream.forward import top_classes
from tammes.heads.clipping import SHARD_GROUPS
from tammes.heads.prototype import Init, PrototypeHead
from tammes.losses._engine.batch_loss import (
    Reduction,
    Weighting,
    check_finite_loss,
    check_sample_weight,
    evaluate_terms,
)
from tammes.losses._engine.batch_values import (
    BatchSummary,
    complete,
    observed,
    reads_the_batch,
    shares_of,
    target_cosines,
)
from tammes.losses._engine.labels import IGNORE_INDEX, MixedLabels, labelling
from tammes.losses._engine.objective_plan import logit_space, plan_of
from tammes.losses._engine.plan import Plan, Targets
from tammes.losses._engine.statistics import Statistics
from tammes.losses._text import ObjectiveLike
from tammes.losses.scores import Space

if TYPE_CHECKING:  # importing DTensor takes a second
    from torch.distributed.tensor import DeviceMesh


class ShardedPrototypeHead(PrototypeHead):
    """A `PrototypeHead` sharded across a process group; each rank holds the prototypes of its `class_range`.

    Every rank calls the head with its local batch, which may have any size, including zero. The loss is that
    of the global batch and the same on every rank. After `backward` the gradient of `weight` is exact. The
    gradient of the embeddings is exact times the world size, so that DDP's average over ranks gives the
    exact gradient of the backbone. Wrap only the backbone in DDP. Labels, their shares and sample weights
    carry no gradient here. `reduction="none"`, `logits` and `predict` return values for the local batch. All
    ranks must make the same calls together.

    Every call starts with a handshake in which the ranks validate their inputs, which synchronizes with the
    device once.

    In the `state_dict` the weight is a `DTensor` sharded along its first dimension, so that
    `torch.distributed.checkpoint` saves and loads all rows at any world size. Pickling it on one rank, as
    `torch.save` does, raises. `load_state_dict` accepts such a DTensor, all rows, or this rank's rows.

    Args:
        in_features: Embedding dimension d.
        num_classes: Total number of classes k over all ranks.
        objective: Any objective, the same on every rank. Soft targets (n, k) are rejected, since they would
            be as large as the logits that the head never forms; `MixedLabels` are supported.
        process_group: Process group of `torch.distributed`; None for the default group. `weight` is then a
            plain parameter with this rank's rows.
        mesh: One-dimensional device mesh, such as `mesh["classes"]`, in place of a process group. `weight`
            and the optimizer state are then DTensors. Not supported together with `sample_rate`, since a
            DTensor has no sparse gradient.
        class_counts: Number of training samples of all k classes, on every rank; `class_weight` likewise.
        init: As in `PrototypeHead`, like all other options. With "random" and the same seed on all ranks, the
            initial prototypes do not depend on the world size.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        objective: ObjectiveLike,
        process_group: Group | None = None,
        *,
        mesh: "DeviceMesh | None" = None,
        class_counts: Tensor | Sequence[float] | None = None,
        class_weight: Tensor | Sequence[float] | None = None,
        ignore_index: int = IGNORE_INDEX,
        init: Init = "random",
        trainable: bool = True,
        block_size: int | Literal["auto"] = "auto",
        fast_products: bool = False,
        centers: int = 1,
        sample_rate: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "ShardedPrototypeHead needs a process group: launch with torchrun and call "
                "torch.distributed.init_process_group(), or use PrototypeHead in a single process."
            )
        if block_size is None:
            raise ValueError('ShardedPrototypeHead always streams: block_size must be "auto" or an integer.')
        if mesh is not None:
            from tammes.heads._ranks.sharded_rows import check_mesh

            check_mesh(mesh, process_group, sample_rate, device)
            device = device or mesh.device_type
        self.process_group, self.mesh = process_group, mesh  # first: the base class reads `class_range`
        super().__init__(
            in_features,
            num_classes,
            objective,
            class_counts=class_counts,
            class_weight=class_weight,
            ignore_index=ignore_index,
            init=init,
            trainable=trainable,
            block_size=block_size,
            fast_products=fast_products,
            centers=centers,
            sample_rate=sample_rate,
            device=device,
            dtype=dtype,
        )
        if mesh is not None:
            from tammes.heads._ranks.sharded_rows import as_dtensor

            rows = as_dtensor(self.weight.detach(), num_classes, mesh)
            self.weight = nn.Parameter(rows, requires_grad=self.weight.requires_grad)
        self._compared = False
        self._forecast = Forecast()
        self._settings: tuple[Any, str] = (None, "")

    @property
    def group(self) -> Group:
        """The process group; a default or mesh group is looked up, so that a head can be copied."""
        if self.mesh is not None:
            return self.mesh.get_group()
        return self.process_group or dist.group.WORLD

    @property
    def class_range(self) -> tuple[int, int]:
        """Half-open range (start, stop) of the classes whose prototypes this rank holds."""
        return class_slice(self.num_classes, dist.get_rank(self.group), dist.get_world_size(self.group))

    @property
    def class_sizes(self) -> list[int]:
        """Number of classes on each rank."""
        world = dist.get_world_size(self.group)
        slices = [class_slice(self.num_classes, rank, world) for rank in range(world)]
        return [last - first for first, last in slices]

    @property
    def local_weight(self) -> Tensor:
        """This rank's rows of `weight`, sharing its memory; gradients flow through to `weight`."""
        weight: Any = self.weight
        return weight.to_local() if hasattr(weight, "to_local") else weight

    def split_rows(self, rows: Tensor) -> Any:
        """A tensor with one row per local prototype as this rank's shard of a `DTensor`."""
        from tammes.heads._ranks.sharded_rows import as_dtensor

        return as_dtensor(rows, self.num_classes, self._mesh())

    def _mesh(self) -> "DeviceMesh":
        from torch.distributed.tensor import DeviceMesh

        return self.mesh or DeviceMesh.from_group(self.group, self.weight.device.type)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if keep_vars:
            return
        from tammes.heads._ranks.sharded_rows import ShardedRows

        rows = self.local_weight.detach()
        several = dist.get_world_size(self.group) > 1
        destination[prefix + "weight"] = ShardedRows.of(self.split_rows(rows)) if several else rows

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **options: Any
    ) -> None:
        name = prefix + "weight"
        if isinstance(state_dict.get(name), Tensor):
            from tammes.heads._ranks.sharded_rows import own_rows

            rows = own_rows(state_dict[name], self._mesh(), self.class_range, self.num_classes)
            fits = rows.shape == self.local_weight.shape
            state_dict[name] = self.split_rows(rows) if fits and self.mesh is not None else rows
        super()._load_from_state_dict(state_dict, prefix, *args, **options)

    @torch.no_grad()
    def reset_parameters(self, init: Init | None = None) -> None:
        """Reinitialize prototypes (by `init`, or as at construction) and scales; not on the meta device."""
        if self.weight.is_meta:
            return
        first, last = self.class_range
        weight = self.local_weight
        if (init or self.init) == "packed":
            weight.copy_(packed_prototypes(self.num_classes, self.in_features)[first:last])
        else:
            seed = int(torch.randint(2**62, (), device="cpu"))
            own, offset = weight.view(-1, self.in_features), first * self.centers
            for start, rows in random_rows(seed, offset, last * self.centers, self.in_features):
                own[start - offset : start - offset + len(rows)] = rows.to(weight)
        self._reset_scales()

    def forward(
        self,
        embeddings: Embeddings,
        labels: Tensor | MixedLabels | None = None,
        *,
        sample_weight: Tensor | None = None,
        reduction: Reduction = "mean",
        check: bool = False,
    ) -> Tensor:
        """The loss of the global batch, or the logits of the local batch if `labels` is None."""
        if labels is None:
            return self.logits(embeddings)
        goal = self._current_goal()
        check_batch = partial(self._check_batch, embeddings, labels, sample_weight, reduction, check)
        call = f"loss with reduction={reduction!r}, training={self.training}"
        meeting = self._meet(embeddings, call, check_batch)
        with torch.autocast(embeddings.device.type, enabled=False):
            dtype = self._dtype(meeting)
            rows, marks = gather_batch(embeddings, meeting, dtype, self.group)
            assert marks is not None
            plan = self._plan(goal, dtype)
            if reads_the_batch(goal.objective):
                plan = self._complete(plan, goal, rows, marks, meeting.sizes)
            statistics = self._global_statistics(rows, marks, plan)
            loss, self.terms = evaluate_terms(
                goal.objective,
                statistics,
                marks.shares,
                Weighting(self.class_weight, marks.sample_weight, marks.kept, marks.soft, marks.all_kept),
                goal.class_values,
                reduction,
            )
            if plan.states:
                seen = observed(goal.objective, statistics, marks.shares, marks.kept)
                self._memory().keep(goal.objective, seen)
        if check:
            check_finite_loss(loss, goal.objective, self.terms, self.local_weight)
        if loss.ndim:
            return own_samples(loss, meeting.sizes, self.group)
        return mean_gradient(loss, self.group)

    def _check_batch(
        self,
        embeddings: Tensor,
        labels: Tensor | MixedLabels,
        sample_weight: Tensor | None,
        reduction: str,
        check: bool,
    ) -> OwnLabels:
        """Validate the local batch; label ranges always, since the handshake synchronizes anyway."""
        self._check_embeddings(embeddings)
        checks.one_of("reduction", reduction, ("mean", "none"))
        if check:
            tensor_checks.check_finite("embeddings", embeddings)
        if isinstance(labels, Tensor) and labels.ndim == 2 and labels.is_floating_point():
            raise ValueError(
                f"ShardedPrototypeHead does not support soft targets, got shape {tuple(labels.shape)}: they "
                "are as large as the logits it avoids. Pass class indices or MixedLabels."
            )
        n = len(embeddings)
        options: dict[str, Any] = {"dtype": torch.float64, "check": True}
        marks = labelling(labels, n, self.num_classes, self.ignore_index, **options)
        check_sample_weight(sample_weight, n, check=True)
        return OwnLabels(marks, sample_weight)

    def _check_embeddings(self, embeddings: Tensor) -> None:
        tensor_checks.check_embeddings(embeddings, self.in_features, empty=True)
        if embeddings.dtype not in DTYPES:
            raise TypeError(
                f"embeddings must be bfloat16, float16, float32 or float64, got {embeddings.dtype}."
            )
        if embeddings.device != self.weight.device:
            raise ValueError(
                f"embeddings must be on the prototypes' device, {self.weight.device}, "
                f"got {embeddings.device}."
            )

    def _meet(self, embeddings: Tensor, call: str, check: Callable[[], OwnLabels | None]) -> Meeting:
        """Validate locally, exchange status, raise together. `check` returns the labels if there are any."""
        if transforming():
            raise RuntimeError(
                "ShardedPrototypeHead does not support torch.func, which cannot differentiate through "
                "collectives. Use torch.autograd, or PrototypeHead(..., block_size=None)."
            )
        if self.mesh is None:
            SHARD_GROUPS[self.weight] = self.group
        settings = f"{self._constants()}\ncall: {call}\ngradients: {torch.is_grad_enabled()}"
        labels, error, own = None, None, Standing()
        try:
            labels = check()
            own = Standing(
                failed=0,
                settings=digest(settings.encode()),
                shard=0 if self._compared else shard_digest(self.local_weight),
                rows=len(embeddings),
                labels=labels.columns if labels else 0,
                plain=int(labels is None or labels.plain),
                dtype=DTYPES.index(embeddings.dtype),
                gradient=int(embeddings.requires_grad),
            )
        except Exception as caught:  # any failure here must raise on every rank
            error = caught
        ahead = self._forecast.ahead(embeddings, labels, own, dist.get_rank(self.group), self.local_weight)
        standings, received = agree(own, settings, error, ahead, self.group)
        if not self._compared and self.sampler is not None:
            self.sampler.seed = gather_numbers([self.sampler.seed], self.group, self.weight.device)[0][0]
        self._compared = True
        return Meeting(labels, standings, self._forecast.arrived(standings, received))

    def _constants(self) -> str:
        """Settings that must be the same on all ranks, one per line; cached until the objective changes."""
        objective, text = self._settings
        if objective is not self.objective:
            lines = {
                "objective": self.objective,
                "num_classes": self.num_classes,
                "in_features": self.in_features,
                "centers": self.centers,
                "ignore_index": self.ignore_index,
                "dtype": self.weight.dtype,
                "sample_rate": None if self.sampler is None else self.sampler.rate,
                "class_weight": described(self.class_weight),
                "class_counts": described(self.class_counts),
            }
            text = "\n".join(f"{name}: {value}" for name, value in lines.items())
            self._settings = self.objective, text
        return text

    def _dtype(self, meeting: Meeting) -> torch.dtype:
        """float32, or float64 if the prototypes or any rank's embeddings are."""
        dtypes = {self.weight.dtype, *(standing.embedding_dtype for standing in meeting.standings)}
        return torch.float64 if torch.float64 in dtypes else torch.float32

    def _plan(self, goal: Goal, dtype: torch.dtype) -> Plan:
        """The plan of the global batch, the same on every rank, but for what it takes from the batch."""
        class_weight = None if self.class_weight is None else self.class_weight.to(dtype)
        scales = {place: shared(s, self.group) for place, s in self._scales(dtype).items()}
        return plan_of(goal.objective, class_weight, goal.class_values, scales)

    def _complete(self, plan: Plan, goal: Goal, rows: Embeddings, marks: GlobalLabels, sizes: Sizes) -> Plan:
        """The plan with what the objective reads from the global batch."""
        summary = self._summary(rows, marks)
        plan = complete(plan, goal.objective, summary, goal.class_values, self._memory())
        if plan.noise is not None:  # each rank draws for its own rows
            own = plan.noise.split(list(sizes))[dist.get_rank(self.group)]
            plan = plan._replace(noise=all_gather(own, sizes, self.group))
        return plan

    @torch.no_grad()
    def _summary(self, rows: Embeddings, marks: GlobalLabels) -> BatchSummary:
        """The summary of the global batch; each rank contributes the target cosines of its classes."""
        own = Slice(*self.class_range, self.num_classes)
        here = own.has(marks.targets)
        places = torch.where(here, marks.targets - own.first, 0)
        target = torch.zeros_like(here, dtype=rows.dtype)
        if len(self.local_weight):
            target = torch.where(here, target_cosines(rows, self.local_weight, places), 0.0)
        target = reduce(target, "SUM", self.group)
        shares = shares_of(marks.shares, marks.kept, target)
        norms = safe_norm(rows).squeeze(1)
        return BatchSummary(marks.targets, target, shares, norms, self.num_classes)

    def _global_statistics(self, embeddings: Embeddings, marks: GlobalLabels, plan: Plan) -> Statistics:
        """Statistics over all classes, or over the sampled classes of each rank during sampled training."""
        own = Slice(*self.class_range, self.num_classes)
        if self.sampler is not None and self.training:
            return self._sampled_statistics(self.sampler, embeddings, marks, plan, own)
        targets, local_plan = marks.targets - own.first, plan.of_classes(own.rows)
        local = self._of_slice(embeddings, self.local_weight, targets, local_plan, self.class_sizes)
        return reduce_statistics(local, marks.targets, plan, own, self.group)

    def _of_slice(
        self, embeddings: Embeddings, rows: Prototypes, targets: Targets, plan: Plan, sizes: list[int]
    ) -> Statistics:
        """Statistics of the local prototypes; the Riesz energy covers all ranks."""
        energy = partial(ring_energy, rows, sizes=sizes, group=self.group)
        return replace(self._statistics(embeddings, rows, targets, plan), riesz=energy)

    def _sampled_statistics(
        self, sampler: ClassSampler, embeddings: Embeddings, marks: GlobalLabels, plan: Plan, own: Slice
    ) -> Statistics:
        here = own.has(marks.targets) & marks.kept[:, None]
        targets = marks.targets - own.first
        sizes: list[int] = []

        def produce(embeddings: Embeddings, rows: Prototypes, places: Targets, plan: Plan) -> Statistics:
            sizes.extend(size for (size,) in gather_numbers([len(rows)], self.group, rows.device))
            return self._of_slice(embeddings, rows, torch.where(here, places, -1), plan, sizes)

        if len(self.weight):
            local = sampler.statistics(
                embeddings,
                self.weight,
                targets,
                plan.of_classes(own.rows),
                draw=partial(
                    sampler.draw, targets[here].unique(), len(self.weight), dist.get_rank(self.group)
                ),
                produce=produce,
            )
            totals = [len(self.weight) * local.centroids[which] for which in plan.centroids]
        else:
            local = produce(embeddings, self.weight, targets, plan.of_classes(own.rows))
            totals = [local.sums[which] for which in plan.centroids]
        whole = reduce_statistics(local, marks.targets, plan, own, self.group)
        totals = sum_over_ranks(totals, self.group) if totals else []
        means = [total / self.num_classes for total in totals]
        centroids: Sums = dict(zip(plan.centroids, means, strict=True))
        return SampledStatistics(**vars(replace(whole, num_classes=sum(sizes))), centroids=centroids)

    def _similarities(self, embeddings: Embeddings, space: Space) -> Similarities:
        """Similarities of the local embeddings with the prototypes of all ranks."""
        check = partial(self._check_embeddings, embeddings)
        meeting = self._meet(embeddings, f"similarities, {space}", check)
        plan = Plan(spaces=(space,), rests=(), hardest=(), sums=(), norms=False)
        dtype = self._dtype(meeting)
        with torch.autocast(embeddings.device.type, enabled=False):
            rows, _ = gather_batch(embeddings, meeting, dtype, self.group)
            columns = class_similarities(rows, self.local_weight.to(dtype), plan)[space]
        return own_rows_of_columns(columns, meeting.sizes, self.class_sizes, self.group)

    @torch.no_grad()
    def predict(self, embeddings: Embeddings, top: int = 1) -> Int[Tensor, "..."]:
        """The most likely class of each local embedding; with `top` > 1, the `top` most likely."""
        check = partial(self._check_prediction, embeddings, top)
        meeting = self._meet(embeddings, f"predict, top={top}", check)
        rows, _ = gather_batch(embeddings, meeting, self._dtype(meeting), self.group)
        space = logit_space(self.objective)
        values, classes = top_classes(rows, self.local_weight, space, top, self._block(len(rows)))
        sizes, widths = meeting.sizes, [min(top, size) for size in self.class_sizes]
        values = own_rows_of_columns(values, sizes, widths, self.group)
        classes = own_rows_of_columns(classes + self.class_range[0], sizes, widths, self.group)
        order = torch.sort(values, dim=1, descending=True, stable=True).indices[:, :top]
        best = classes.gather(1, order)
        return best.squeeze(1) if top == 1 else best

    def _check_prediction(self, embeddings: Tensor, top: int) -> None:
        self._check_embeddings(embeddings)
        self._check_top(top)

    @torch.no_grad()
    def drop_minor_centers(
        self, embeddings: Embeddings, labels: Labels, *, threshold: float = math.radians(75)
    ) -> tuple["PrototypeHead", Bool[Tensor, " n"]]:
        """Keep the dominant prototype of each class, by the samples of all ranks; see `PrototypeHead`.

        The new head is sharded in the same way. Each rank passes its part of the training set and gets the
        samples to keep of that part. All embeddings must fit into the memory of each rank.
        """
        check = partial(self._check_dropping, embeddings, labels, threshold)
        meeting = self._meet(embeddings, f"drop_minor_centers, threshold={threshold}", check)
        sizes, own = meeting.sizes, Slice(*self.class_range, self.num_classes)
        rows, _ = gather_batch(embeddings, meeting, self._dtype(meeting), self.group)
        everyone = all_gather(labels.long(), sizes, self.group)
        here = (everyone != self.ignore_index) & own.has(everyone)
        places = torch.where(here, everyone - own.first, -1)
        weight, kept = dominant_centers(self.local_weight, rows, places, -1, threshold)
        near = reduce(kept.to(rows.dtype), "SUM", self.group)
        return self._with_one_center(weight), own_samples(near, sizes, self.group) > 0

    def _check_dropping(self, embeddings: Tensor, labels: Tensor, threshold: float) -> None:
        self._check_embeddings(embeddings)
        if len(embeddings):
            super()._check_dropping(embeddings, labels, threshold)

    def _new_head(self, **options: Any) -> "ShardedPrototypeHead":
        return ShardedPrototypeHead(process_group=self.process_group, mesh=self.mesh, **options)

    def class_margin(self) -> Scalar:
        """Smallest angle between prototypes of two classes, across all ranks, in radians."""
        return ring_class_margin(self.local_weight, self.class_sizes, self.group)
