"""Network, prototypes and optimizer, the learning-rate schedule, and one training step."""

import contextlib
import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tammes.geometry.sphere import safe_norm
from tammes.heads import clip_grad_norm_
from tammes.heads._beside_weight import copy_beside_weight
from tammes.lab.data import Batch
from tammes.lab.models import AroundNeck
from tammes.lab.models.backbone import in_precision
from tammes.lab.training.classifier import PROTOTYPES, Classifier, build_optimizer
from tammes.lab.training.config import ResolvedConfig
from tammes.lab.training.distributed import World, rows_here, rows_of_all, shard
from tammes.lab.training.margin_warmup import with_margins
from tammes.losses import MixedLabels, effective_number_weights
from tammes.losses.triplet import batch_hard_triplet

START = 0.01
"""Start of a warm-up, as a fraction of the learning rate."""
PEAK = 0.25
"""Peak of one-cycle, as a fraction of the run."""


class Engine:
    """A classifier in training.

    Under `torchrun` the backbone is wrapped in DDP, without synchronized batch norm: each rank normalizes by
    its own part of the batch. The classes are sharded over the ranks. `gather` updates `classifier`, which
    has all of them.
    """

    def __init__(self, config: ResolvedConfig, classifier: Classifier, world: World) -> None:
        self.config, self.world = config, world
        self.classifier = classifier.to(world.device).train()
        self.head = shard(classifier.head, world)
        self.objective = config.parsed
        net = AroundNeck(classifier.backbone) if config.triplet else classifier.backbone
        self.forward: Any = torch.compile(net) if config.compile else net
        self.triplet: Tensor | None = None  # of the last step
        self.optimizer = build_optimizer(config, classifier.backbone, self.head)
        self.reweighted = False
        if config.learns == "lengths":
            self.head.weight.register_hook(self._along_prototypes)
        scaled, device = config.autocast == "fp16", world.device.type
        if world.size == 1:
            self.scaler = torch.amp.GradScaler(device, enabled=scaled)
        else:
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            if not self.classifier.frozen:
                self.forward = torch.nn.parallel.DistributedDataParallel(self.forward)
            self.scaler = ShardedGradScaler(
                device, enabled=scaled
            )  # either all ranks skip a step or none does
        self._check_parts()

    def _check_parts(self) -> None:
        parts = self.config.accumulate * self.world.size
        if self.config.accumulate > 1 and self.world.size > 1 and self.config.batch_size % parts:
            raise ValueError(
                f"On {self.world.size} ranks batch_size must be a multiple of {parts} for "
                f"accumulate={self.config.accumulate}, got {self.config.batch_size}."
            )

    @torch.no_grad()
    def gather(self) -> Classifier:
        """The current classifier, identical on every rank. All ranks must call it."""
        if self.world.size > 1:
            self.classifier.head.weight.copy_(rows_of_all(self.head.weight.detach(), self.head))
            copy_beside_weight(self.head, self.classifier.head)
            for buffer in self.classifier.backbone.buffers():
                self.world.share(buffer)
        return self.classifier

    @torch.no_grad()
    def begin(self, weights: dict[str, Tensor]) -> None:
        """Load the given weights and leave the others unchanged."""
        self.classifier.load_state_dict(weights, strict=False)
        self._share_prototypes()

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Load the weights and `state` of a checkpoint, written with any world size."""
        self.classifier.load_state_dict(weights)
        self._share_prototypes()
        self._each_prototype_state(state["optimizer"], lambda whole: rows_here(whole, self.head))
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def _share_prototypes(self) -> None:
        """Copy this rank's rows of the classifier's prototypes to the shard."""
        if self.world.size > 1:
            self.head.weight.copy_(rows_here(self.classifier.head.weight, self.head))
            copy_beside_weight(self.classifier.head, self.head)

    def state(self) -> dict[str, Any]:
        """Everything except the weights that the next step depends on. All ranks must call it."""
        optimizer = self.optimizer.state_dict()
        self._each_prototype_state(optimizer, lambda own: rows_of_all(own, self.head))
        return {"optimizer": optimizer, "scaler": self.scaler.state_dict()}

    def _each_prototype_state(self, stored: dict[str, Any], change: Callable[[Tensor], Tensor]) -> None:
        """Apply `change` to each tensor of an optimizer's `stored` state that has one row per prototype."""
        if self.world.size == 1 or not self.config.trainable_prototypes or self.config.learns == "nothing":
            return
        (place,) = stored["param_groups"][PROTOTYPES]["params"]
        own = stored["state"].get(place, {})
        rows = {name: change(value) for name, value in own.items() if torch.is_tensor(value) and value.ndim}
        stored["state"][place] = own | rows

    def begin_epoch(self, epoch: int) -> None:
        """Set the margins of this epoch."""
        objective = self.objective
        if epoch < self.config.margin_warmup:
            objective = with_margins(objective, epoch / self.config.margin_warmup)
        if self.head.objective != objective:
            self.head.objective = objective

    @torch.no_grad()
    def reweight(self, progress: float) -> None:
        """Apply the class weights once `reweight_from` of the run is completed."""
        late = self.config.class_weights != "none" and progress >= self.config.reweight_from
        if not late or self.reweighted:
            return
        for head in (self.classifier.head, self.head):
            assert head.class_counts is not None
            assert head.class_weight is not None
            weights = effective_number_weights(head.class_counts.tolist(), beta=self.config.effective_beta)
            head.class_weight.copy_(torch.tensor(weights))
        self.reweighted = True

    def freeze(self, progress: float) -> None:
        """Keep the backbone fixed until `frozen_start` of the run is completed."""
        frozen = self.config.learns != "all" or progress < self.config.frozen_start
        if frozen != self.classifier.frozen:
            self.classifier.frozen = frozen
            self.classifier.train()

    def set_rates(self, factor: float) -> float:
        """Set every learning rate to `factor` times its peak. Return the backbone's."""
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
        return self.optimizer.param_groups[0]["lr"]

    def step(self, batch: Batch, step: int) -> Tensor:
        """Train on one batch. Return its loss without synchronizing. An empty batch is skipped."""
        if self.world.size == 1 and not len(batch.images):
            return torch.zeros((), device=self.world.device)
        self._seed(step)
        loss = self._backward(batch, step)
        if self.config.clip is not None:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(
                [*self.classifier.backbone.parameters(), *self.head.parameters()], self.config.clip
            )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.config.unit_prototypes and self.config.trainable_prototypes:
            with torch.no_grad():
                self.head.weight.div_(safe_norm(self.head.weight))
        return loss

    def _seed(self, step: int) -> None:
        """Seed the random numbers of a step (dropout) by seed, step and rank only."""
        text = f"{self.config.seed}/{step}/{self.world.rank}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
        torch.default_generator.manual_seed(seed)
        if self.world.device.type != "cpu":
            torch.get_device_module(self.world.device).manual_seed(seed)

    def _backward(self, batch: Batch, step: int) -> Tensor:
        """Accumulate the gradients of the batch's loss, part by part."""
        images, labels = self._mixed(batch, step) if self.config.mixup else (batch.images, batch.labels)
        parts, total = self.config.accumulate, torch.zeros((), device=self.world.device)
        for part, some in zip(images.tensor_split(parts), _split(labels, parts), strict=True):
            if self.world.size == 1 and not len(part):
                continue
            share = 1 / parts if self.world.size > 1 else len(part) / len(images)
            with self._autocast(), torch.set_grad_enabled(not self.classifier.frozen):
                embeddings = self.forward(part)
            loss = share * self._loss(embeddings, some)
            self.scaler.scale(loss).backward()
            total += loss.detach()
        return total

    def _along_prototypes(self, gradient: Tensor) -> Tensor:
        """The radial component of each row: it changes the prototype's norm, not its direction."""
        weight = self.head.weight.detach()
        directions = weight / safe_norm(weight)
        return (gradient * directions).sum(-1, keepdim=True) * directions

    def _loss(self, embeddings: Any, labels: Tensor | MixedLabels) -> Tensor:
        if not self.config.triplet:
            return self.head(embeddings, labels)
        before, behind = embeddings
        assert isinstance(labels, Tensor)
        self.triplet = batch_hard_triplet(before.float(), labels, margin=self.config.triplet_margin).mean()
        return self.head(behind, labels) + self.config.triplet * self.triplet

    @property
    def terms(self) -> dict[str, Tensor]:
        """Loss terms of the last step."""
        return self.head.terms | ({} if self.triplet is None else {"triplet": self.triplet})

    def _mixed(self, batch: Batch, step: int) -> tuple[Tensor, MixedLabels]:
        """Mix each image with its neighbor in the batch, which is already in random order."""
        alpha = self.config.mixup
        lam = float(np.random.default_rng([self.config.seed, step]).beta(alpha, alpha))
        images = torch.lerp(batch.images.roll(1, 0), batch.images, lam)
        return images, MixedLabels(batch.labels, batch.labels.roll(1), lam)

    def _autocast(self) -> contextlib.AbstractContextManager:
        return in_precision(self.config.autocast, self.world.device)


def _split(labels: Tensor | MixedLabels, parts: int) -> list[Tensor] | list[MixedLabels]:
    if isinstance(labels, Tensor):
        return list(labels.tensor_split(parts))
    pairs = zip(labels.a.tensor_split(parts), labels.b.tensor_split(parts), strict=True)
    return [MixedLabels(a, b, labels.lam) for a, b in pairs]


def learning_rate(
    schedule: str, progress: float, *, warmup: float = 0.0, milestones: tuple[float, ...] = ()
) -> float:
    r"""Learning-rate factor at `progress`, the completed fraction of the run.

    - cosine: :math:`\tfrac12 (1 + \cos \pi p)`;
    - one-cycle: linear up to a quarter of the run, then linear down to 0;
    - step: divided by 10 at each of the `milestones`;
    - polynomial: :math:`(1 - p)^2`;
    - constant.

    The first `warmup` fraction of the run is a linear warm-up. Cosine and polynomial then span the rest of
    the run.

    >>> [round(learning_rate("cosine", p, warmup=0.5), 3) for p in (0.0, 0.25, 0.5, 0.75, 1.0)]
    [0.01, 0.505, 1.0, 0.5, 0.0]
    """
    if progress < warmup:
        return START + (1 - START) * progress / warmup
    past = (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0
    match schedule:
        case "cosine":
            return (1 + math.cos(math.pi * past)) / 2
        case "polynomial":
            return (1 - past) ** 2
        case "one-cycle":
            rise = START + (1 - START) * progress / PEAK
            return min(rise, (1 - progress) / (1 - PEAK))
        case "step":
            return 0.1 ** sum(progress >= milestone for milestone in milestones)
    return 1.0
