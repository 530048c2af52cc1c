"""`ShardedPrototypeHead`: the classes split over the ranks of a process group.

Each rank owns a slice of the prototypes. The embeddings of all ranks are gathered, every rank computes the
statistics of its slice, and a few numbers per sample are reduced: what is sent does not grow with k.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor

from tammes import checks
from tammes.geometry.sphere import normalize
from tammes.heads.agreement import DTYPES, Standing, agree, digest, shard_digest
from tammes.heads.clipping import SHARD_GROUPS
from tammes.heads.collectives import (
    Group,
    gather_numbers,
    mean_gradient,
    own_rows,
    own_rows_of_columns,
    sum_over_ranks,
)
from tammes.heads.global_batch import GlobalLabels, gather_embeddings, gather_labels, sizes_of
from tammes.heads.prototype import Init, PrototypeHead, packed
from tammes.heads.reduction import Slice, reduce_statistics
from tammes.heads.ring import ring_class_margin, ring_energy
from tammes.heads.sampled import ClassSampler, SampledStatistics, Sums
from tammes.heads.streamed import top_classes
from tammes.losses.evaluate import Reduction, Weighting, check_sample_weight, evaluate
from tammes.losses.labels import Labelling, MixedLabels, labelling
from tammes.losses.objective import Objective, logit_space, plan_of
from tammes.losses.scores import Space
from tammes.losses.statistics import Plan, Statistics, Targets, similarities
from tammes.types import Embeddings, Prototypes, Scalar, Similarities

SEED_ROWS = 1024
"""Rows that are drawn from one seed, so that they do not depend on the number of ranks."""


def class_slice(num_classes: int, rank: int, world_size: int) -> tuple[int, int]:
    """First and last + 1 of a rank's classes, split as `torch.chunk` does; the last ranks may have none.

    >>> [class_slice(7, rank, 3) for rank in range(3)], class_slice(2, 2, 3)
    ([(0, 3), (3, 6), (6, 7)], (2, 2))
    """
    width = -(-num_classes // world_size)
    return min(rank * width, num_classes), min((rank + 1) * width, num_classes)


class ShardedPrototypeHead(PrototypeHead):
    """`PrototypeHead` over all ranks of a process group, each with the prototypes of its `class_range`.

    Every rank calls it with its own part of the batch, of any size, also none. The loss is that of the whole
    batch, the same on every rank. After `backward` the gradient of `weight` is exact; that of the
    embeddings is W times the exact one on W ranks, so that the mean which DDP takes over the backbone's
    gradients is exact. Only the backbone goes into DDP. Labels, their shares and sample weights carry no
    gradient here. `reduction="none"` gives the values of the rank's own rows, `logits` and `predict` too;
    all ranks must call them together.

    Every call agrees first on what the ranks bring, which waits for the device once.

    Args:
        in_features: d, the width of the embeddings.
        num_classes: k, of all ranks together.
        objective: any objective, the same on every rank. Soft targets (n, k) are refused, since they would
            be as large as the logits that are never formed; `MixedLabels` are not.
        process_group: of `torch.distributed`; None for all ranks.
        options: those of `PrototypeHead`; class counts and weights are of all k classes, on every rank.
            With `init="random"` and the same seed on all ranks the prototypes do not depend on how many
            there are.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        objective: Objective,
        process_group: Group | None = None,
        **options: Any,
    ) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "ShardedPrototypeHead needs a process group: launch with torchrun and call "
                "torch.distributed.init_process_group(), or use PrototypeHead in a single process."
            )
        if options.get("block_size", "auto") is None:
            raise ValueError('ShardedPrototypeHead always streams: block_size must be "auto" or an integer.')
        self.process_group = process_group  # first, since the base class asks for `class_range`
        super().__init__(in_features, num_classes, objective, **options)
        self._compared = False
        self._settings: tuple[Any, str] = (None, "")

    @property
    def group(self) -> Group:
        """The process group; that of all ranks is not kept, so that a head can be copied."""
        return self.process_group or dist.group.WORLD

    @property
    def class_range(self) -> tuple[int, int]:
        """First and last + 1 of the classes whose prototypes are rows of `weight` on this rank."""
        return class_slice(self.num_classes, dist.get_rank(self.group), dist.get_world_size(self.group))

    @property
    def class_sizes(self) -> list[int]:
        """How many classes each rank has."""
        world = dist.get_world_size(self.group)
        slices = [class_slice(self.num_classes, rank, world) for rank in range(world)]
        return [last - first for first, last in slices]

    @torch.no_grad()
    def reset_parameters(self, init: Init = "random") -> None:
        """Prototypes anew: random unit vectors, or packed as far apart as they can be."""
        first, last = self.class_range
        if init == "packed":
            self.weight.copy_(packed(self.num_classes, self.in_features)[first:last])
        else:
            seed = int(torch.randint(2**62, ()))
            for start in range(first // SEED_ROWS * SEED_ROWS, last, SEED_ROWS):
                generator = torch.Generator().manual_seed(seed + start)
                rows = normalize(torch.randn(SEED_ROWS, self.in_features, generator=generator))
                low, high = max(start, first), min(start + SEED_ROWS, last)
                self.weight[low - first : high - first] = rows[low - start : high - start].to(self.weight)
        if self.sampler is not None:
            self.sampler.sums.forget()

    def forward(
        self,
        embeddings: Embeddings,
        labels: Tensor | MixedLabels | None = None,
        *,
        sample_weight: Tensor | None = None,
        reduction: Reduction = "mean",
        check: bool = False,
    ) -> Tensor:
        """The loss of the global batch; without labels the logits of the local one."""
        if labels is None:
            return self.logits(embeddings)
        check_batch = partial(self._check_batch, embeddings, labels, sample_weight, reduction, check)
        call = f"loss with reduction={reduction!r}, training={self.training}"
        marks, standings = self._meet(embeddings, call, check_batch)
        with torch.autocast(embeddings.device.type, enabled=False):
            rows = gather_embeddings(embeddings, standings, self._dtype(standings), self.group)
            marks = gather_labels(marks, sample_weight, standings, self.group)
            loss, self.terms = evaluate(
                self.objective,
                self._global_statistics(rows, marks, plan_of(self.objective)),
                marks.shares,
                Weighting(self.class_weight, marks.sample_weight, marks.kept),
                self._class_values(),
                reduction,
            )
        if loss.ndim:
            return own_rows(loss, sizes_of(standings), self.group)
        return mean_gradient(loss, self.group)

    def _check_batch(
        self,
        embeddings: Tensor,
        labels: Tensor | MixedLabels,
        sample_weight: Tensor | None,
        reduction: str,
        check: bool,
    ) -> Labelling:
        """The local batch, checked; the range of labels always, since the device is waited for anyway."""
        self._check_embeddings(embeddings)
        checks.one_of("reduction", reduction, ("mean", "none"))
        if check:
            checks.check_finite("embeddings", embeddings)
        if isinstance(labels, Tensor) and labels.ndim == 2 and labels.is_floating_point():
            raise ValueError(
                f"ShardedPrototypeHead takes no soft targets, got shape {tuple(labels.shape)}: they are as "
                "large as the logits it avoids. Give class indices, or two with a weight: MixedLabels."
            )
        n = len(embeddings)
        options: dict[str, Any] = {"dtype": torch.float64, "check": True}
        marks = labelling(labels, n, self.num_classes, self.ignore_index, **options)
        check_sample_weight(sample_weight, n, check=True)
        return marks

    def _check_embeddings(self, embeddings: Tensor) -> None:
        checks.check_embeddings(embeddings, self.in_features, empty=True)
        if embeddings.dtype not in DTYPES:
            raise TypeError(f"embeddings must be bfloat16 or float16 to float64, got {embeddings.dtype}.")
        if embeddings.device != self.weight.device:
            raise ValueError(
                f"embeddings must be on {self.weight.device}, as the prototypes are, got {embeddings.device}."
            )

    def _meet(self, embeddings: Tensor, call: str, check: Callable[[], Any]) -> tuple[Any, list[Standing]]:
        """Check the own input and hear of the others', or raise together: what `check` gave, standings."""
        SHARD_GROUPS[self.weight] = self.group
        settings = f"{self._constants()}\ncall: {call}\ngradients: {torch.is_grad_enabled()}"
        found, error, own = None, None, Standing()
        try:
            found = check()
            own = Standing(
                failed=0,
                settings=digest(settings.encode()),
                shard=0 if self._compared else shard_digest(self.weight),
                rows=len(embeddings),
                labels=found.targets.shape[1] if found else 1,
                dtype=DTYPES.index(embeddings.dtype),
                gradient=int(embeddings.requires_grad),
            )
        except Exception as caught:  # whatever it is, the others must hear of it
            error = caught
        standings = agree(own, settings, error, self.group, self.weight.device)
        if not self._compared and self.sampler is not None:
            self.sampler.seed = gather_numbers([self.sampler.seed], self.group, self.weight.device)[0][0]
        self._compared = True
        return found, standings

    def _constants(self) -> str:
        """What must be the same on all ranks, one to a line; written anew for another objective."""
        objective, text = self._settings
        if objective is not self.objective:
            lines = {
                "objective": self.objective,
                "num_classes": self.num_classes,
                "in_features": self.in_features,
                "ignore_index": self.ignore_index,
                "dtype": self.weight.dtype,
                "sample_rate": None if self.sampler is None else self.sampler.rate,
                "class_weight": _described(self.class_weight),
                "class_counts": _described(self.class_counts),
            }
            text = "\n".join(f"{name}: {value}" for name, value in lines.items())
            self._settings = self.objective, text
        return text

    def _dtype(self, standings: list[Standing]) -> torch.dtype:
        """Float32, or float64 where the prototypes or a rank's embeddings are."""
        dtypes = {self.weight.dtype, *(standing.embedding_dtype for standing in standings)}
        return torch.float64 if torch.float64 in dtypes else torch.float32

    def _global_statistics(self, embeddings: Embeddings, marks: GlobalLabels, plan: Plan) -> Statistics:
        """Statistics of all classes; of a sample of each rank's while a head with `sample_rate` trains."""
        own = Slice(*self.class_range, self.num_classes)
        if self.sampler is not None and self.training:
            return self._sampled_statistics(self.sampler, embeddings, marks, plan, own)
        local = self._of_slice(embeddings, self.weight, marks.targets - own.first, plan, self.class_sizes)
        return reduce_statistics(local, marks.targets, plan, own, self.group)

    def _of_slice(
        self, embeddings: Embeddings, rows: Prototypes, targets: Targets, plan: Plan, sizes: list[int]
    ) -> Statistics:
        """Statistics of the prototypes that this rank has, but the energy with those of the others."""
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
                plan,
                positives=targets[here].unique(),
                produce=produce,
                stream=dist.get_rank(self.group),
            )
            totals = [len(self.weight) * local.centroid(space) for space in plan.sums]
        else:
            local = produce(embeddings, self.weight, targets, plan)
            totals = [local.sums[space] for space in plan.sums]
        whole = reduce_statistics(local, marks.targets, plan, own, self.group)
        totals = sum_over_ranks(totals, self.group) if totals else []
        centroids: Sums = {s: total / self.num_classes for s, total in zip(plan.sums, totals, strict=True)}
        return SampledStatistics(**vars(replace(whole, num_classes=sum(sizes))), centroids=centroids)

    def _similarities(self, embeddings: Embeddings, space: Space) -> Similarities:
        """The local embeddings against the prototypes of all ranks."""
        check = partial(self._check_embeddings, embeddings)
        _, standings = self._meet(embeddings, f"similarities, {space}", check)
        plan = Plan(spaces=(space,), rests=(), hardest=(), sums=(), norms=False)
        dtype = self._dtype(standings)
        with torch.autocast(embeddings.device.type, enabled=False):
            rows = gather_embeddings(embeddings, standings, dtype, self.group)
            columns = similarities(rows, self.weight.to(dtype), plan)[space]
        return own_rows_of_columns(columns, sizes_of(standings), self.class_sizes, self.group)

    @torch.no_grad()
    def predict(self, embeddings: Embeddings, top: int = 1) -> Int[Tensor, "..."]:
        """The class with the largest logit for each local embedding; with `top` the first few."""
        check = partial(self._check_prediction, embeddings, top)
        _, standings = self._meet(embeddings, f"predict, top={top}", check)
        rows = gather_embeddings(embeddings, standings, self._dtype(standings), self.group)
        space, _ = logit_space(self.objective)
        values, classes = top_classes(rows, self.weight, space, top, self._block(len(rows)))
        sizes, widths = sizes_of(standings), [min(top, size) for size in self.class_sizes]
        values = own_rows_of_columns(values, sizes, widths, self.group)
        classes = own_rows_of_columns(classes + self.class_range[0], sizes, widths, self.group)
        order = torch.sort(values, dim=1, descending=True, stable=True).indices[:, :top]
        best = classes.gather(1, order)
        return best.squeeze(1) if top == 1 else best

    def _check_prediction(self, embeddings: Tensor, top: int) -> None:
        self._check_embeddings(embeddings)
        self._check_top(top)

    def class_margin(self) -> Scalar:
        """Smallest angle between two prototypes of any ranks, in radians."""
        return ring_class_margin(self.weight, self.class_sizes, self.group)


def _described(values: Tensor | None) -> str:
    """Enough of a tensor to tell it from another."""
    if values is None:
        return "None"
    content = values.detach().double().cpu()
    return f"{content.min():g} to {content.max():g}, digest {digest(content.numpy().tobytes()):x}"
