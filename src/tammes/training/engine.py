"""Network, prototypes and optimiser, and the one step they make together."""

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tammes.data import Batch
from tammes.geometry.sphere import safe_norm
from tammes.heads import clip_grad_norm_
from tammes.losses import MixedLabels, effective_number_weights, parse
from tammes.losses.triplet import batch_hard_triplet
from tammes.models import AroundNeck
from tammes.training.classifier import Classifier, build_optimizer
from tammes.training.config import Config
from tammes.training.distributed import World
from tammes.training.schedules import with_margins
from tammes.training.shards import rows_here, rows_of_all, same_draws, shard

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Engine:
    """A classifier in training.

    Under `torchrun` the backbone is in DDP, whose meaning for batch statistics is the usual one: each rank
    normalises by its own part of the batch. The classes are shared out by a sharded head, and `classifier`,
    which has all of them, is brought up to date by `gather`.
    """

    def __init__(self, config: Config, classifier: Classifier, world: World) -> None:
        self.config, self.world = config, world
        self.classifier = classifier.to(world.device).train()
        self.head = shard(classifier.head, world)
        self.objective = parse(config.objective)
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
            self.scaler = ShardedGradScaler(device, enabled=scaled)  # all ranks skip a step, or none
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
        """The classifier as it is now, the same on every rank; all must call it together."""
        if self.world.size > 1:
            self.classifier.head.weight.copy_(rows_of_all(self.head.weight.detach(), self.head))
            same_draws(self.head, self.classifier.head)
            for buffer in self.classifier.backbone.buffers():
                self.world.share(buffer)
        return self.classifier

    @torch.no_grad()
    def begin(self, weights: dict[str, Tensor]) -> None:
        """Take over those weights that are given; the others stay as they are."""
        self.classifier.load_state_dict(weights, strict=False)
        self._share_prototypes()

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go back to the weights and the `state` of a checkpoint, from however many ranks."""
        self.classifier.load_state_dict(weights)
        self._share_prototypes()
        self._each_prototype_state(state["optimizer"], lambda whole: rows_here(whole, self.head))
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def _share_prototypes(self) -> None:
        """To each rank its rows of the whole classifier's prototypes."""
        if self.world.size > 1:
            self.head.weight.copy_(rows_here(self.classifier.head.weight, self.head))
            same_draws(self.classifier.head, self.head)

    def state(self) -> dict[str, Any]:
        """What, beside the weights, the next step depends on; all ranks must call it together."""
        optimizer = self.optimizer.state_dict()
        self._each_prototype_state(optimizer, lambda own: rows_of_all(own, self.head))
        return {"optimizer": optimizer, "scaler": self.scaler.state_dict()}

    def _each_prototype_state(self, stored: dict[str, Any], change: Callable[[Tensor], Tensor]) -> None:
        """Replace, in an optimiser's `stored` state, what has a row for each prototype."""
        if self.world.size == 1 or not self.config.trainable_prototypes or self.config.learns == "nothing":
            return
        (place,) = stored["param_groups"][-1]["params"]
        own = stored["state"].get(place, {})
        rows = {name: change(value) for name, value in own.items() if torch.is_tensor(value) and value.ndim}
        stored["state"][place] = own | rows

    def begin_epoch(self, epoch: int) -> None:
        """The margins of this epoch."""
        share = epoch / self.config.margin_warmup if self.config.margin_warmup else 1.0
        objective = with_margins(self.objective, share)
        if self.head.objective != objective:
            self.head.objective = objective

    @torch.no_grad()
    def reweight(self, progress: float) -> None:
        """Give the classes their weights once that share of the run is done."""
        late = self.config.class_weights != "none" and progress >= self.config.reweight_from
        if not late or self.reweighted:
            return
        for head in (self.classifier.head, self.head):
            assert head.class_counts is not None
            assert head.class_weight is not None
            weights = effective_number_weights(head.class_counts.tolist(), beta=self.config.effective_beta)
            head.class_weight.copy_(torch.tensor(weights))
        self.reweighted = True

    def set_rates(self, factor: float) -> float:
        """Every learning rate at `factor` of its peak; the network's."""
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
        return self.optimizer.param_groups[0]["lr"]

    def step(self, batch: Batch, step: int) -> Tensor:
        """Learn from one batch; its loss, which nothing here waits for. One without images is left out."""
        if self.world.size == 1 and not len(batch.images):
            return torch.zeros((), device=self.world.device)
        self._seed(step)
        loss = self._backward(batch, step)
        if self.config.clip is not None:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_([*self.classifier.backbone.parameters(), self.head.weight], self.config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.config.unit_prototypes and self.config.trainable_prototypes:
            with torch.no_grad():
                self.head.weight.div_(safe_norm(self.head.weight))
        return loss

    def _seed(self, step: int) -> None:
        """Random numbers of a step (dropout) follow from the seed, the step and the rank alone."""
        text = f"{self.config.seed}/{step}/{self.world.rank}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
        torch.default_generator.manual_seed(seed)
        if self.world.device.type != "cpu":
            torch.get_device_module(self.world.device).manual_seed(seed)

    def _backward(self, batch: Batch, step: int) -> Tensor:
        """Gradients of the batch's loss, part by part."""
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
        """The part of each row that changes its prototype's length and not its direction."""
        weight = self.head.weight.detach()
        directions = weight / safe_norm(weight)
        return (gradient * directions).sum(1, keepdim=True) * directions

    def _loss(self, embeddings: Any, labels: Tensor | MixedLabels) -> Tensor:
        if not self.config.triplet:
            return self.head(embeddings, labels)
        before, behind = embeddings
        assert isinstance(labels, Tensor)
        self.triplet = batch_hard_triplet(before.float(), labels, margin=self.config.triplet_margin).mean()
        return self.head(behind, labels) + self.config.triplet * self.triplet

    @property
    def terms(self) -> dict[str, Tensor]:
        """The parts of the last step's loss."""
        return self.head.terms | ({} if self.triplet is None else {"triplet": self.triplet})

    def _mixed(self, batch: Batch, step: int) -> tuple[Tensor, MixedLabels]:
        """Each image with its neighbour in the batch, which is in random order already."""
        alpha = self.config.mixup
        lam = float(np.random.default_rng([self.config.seed, step]).beta(alpha, alpha))
        images = torch.lerp(batch.images.roll(1, 0), batch.images, lam)
        return images, MixedLabels(batch.labels, batch.labels.roll(1), lam)

    def _autocast(self) -> contextlib.AbstractContextManager:
        if self.config.autocast == "none":
            return contextlib.nullcontext()
        return torch.autocast(self.world.device.type, HALF[self.config.autocast])


def _split(labels: Tensor | MixedLabels, parts: int) -> list[Tensor] | list[MixedLabels]:
    if isinstance(labels, Tensor):
        return list(labels.tensor_split(parts))
    pairs = zip(labels.a.tensor_split(parts), labels.b.tensor_split(parts), strict=True)
    return [MixedLabels(a, b, labels.lam) for a, b in pairs]
