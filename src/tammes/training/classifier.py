"""A network and its prototypes as one module, built from a config and the facts of a data set."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tammes.data import Augmentation, Batches, DataSet, load
from tammes.heads import PrototypeHead
from tammes.losses import parse
from tammes.models import Backbone, build
from tammes.models.catalogue import LEAST_SIDE
from tammes.training.config import Config
from tammes.types import Similarities

CALIBRATION_SAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What a trained network must know of its data set: enough to predict without it."""

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_counts: tuple[int, ...]

    @classmethod
    def of(cls, dataset: DataSet) -> "DataFacts":
        return cls(
            name=dataset.name,
            classes=dataset.classes,
            shape=dataset.shape,
            mean=dataset.mean,
            std=dataset.std,
            class_counts=tuple(dataset.class_counts.tolist()),
        )

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "DataFacts":
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
        return cls(**values)


class Classifier(nn.Module):
    """Images to logits: a backbone, then a head."""

    def __init__(self, backbone: Backbone, head: PrototypeHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Float[Tensor, "n c h w"]) -> Similarities:
        return self.head(self.backbone(images))


def load_data(config: Config) -> DataSet:
    """The data set that `config` names, its images as large as the model needs."""
    options = {"root": config.data_root, "download": config.download, "max_unreadable": config.max_unreadable}
    dataset = load(config.data, image_size=config.image_size, **options)
    side, least = min(dataset.shape[1:]), LEAST_SIDE.get(config.model, 1)
    if config.image_size is None and side < least <= 2 * side:
        dataset = load(config.data, image_size=2 * side, **options)
    return dataset if config.augment else replace(dataset, augmentation=Augmentation())


def build_classifier(config: Config, facts: DataFacts) -> Classifier:
    """Network and prototypes as `config` starts them; the seed decides the weights."""
    torch.manual_seed(config.seed)
    channels, height, width = facts.shape
    backbone = build(
        config.model,
        in_channels=channels,
        image_size=(height, width),
        embedding=config.embedding,
        neck=config.neck,
        last_stride=config.last_stride,
        pretrained=config.pretrained,
    )
    head = PrototypeHead(
        backbone.out_features,
        len(facts.classes),
        parse(config.objective),
        class_counts=facts.class_counts,
        init=config.prototype_init,
        trainable=config.trainable_prototypes,
    )
    return Classifier(backbone, head)


@torch.no_grad()
def calibrate(backbone: Backbone, dataset: DataSet, config: Config, device: torch.device) -> None:
    """Let the network see normalised training images before its first step."""
    first = Batches(
        dataset,
        batch_size=min(CALIBRATION_SAMPLES, len(dataset.train)),
        training=False,
        device=device,
        workers=config.workers,
    ).epoch(0)
    backbone.calibrate(next(iter(first)).images)


def build_optimizer(config: Config, backbone: Backbone, head: PrototypeHead) -> torch.optim.Optimizer:
    """One group for the network, one for the prototypes; each remembers its peak learning rate."""
    weights = [p for p in backbone.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": weights, "lr": config.lr, "weight_decay": config.weight_decay}]
    if config.trainable_prototypes:
        groups += head.param_groups(config.prototype_lr, config.prototype_weight_decay)
    if config.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov)
    else:
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        optimizer = kind(groups, betas=(config.momentum, 0.999))
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer
