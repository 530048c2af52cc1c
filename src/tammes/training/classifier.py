"""A network and its prototypes as one module, built from a config and the facts of a data set."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tammes.data import Augmentation, Batches, DataSet, hold_out, imbalance, load
from tammes.data.imbalance import parse_imbalance
from tammes.heads import PrototypeHead, RowAdamW, RowSGD
from tammes.losses import parse
from tammes.models import Backbone, build
from tammes.models.catalogue import LEAST_SIDE
from tammes.training.config import Config
from tammes.types import Embeddings, Similarities

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
    """Images to logits: a backbone, then a head.

    Args:
        backbone: images to embeddings.
        head: embeddings to logits.
        adjustment: taken off the logits of each class.
        frozen: the backbone stays as it is, also in training mode.
        shifting: except that its batch statistics follow what it sees in training mode.
    """

    adjustment: Tensor | None

    def __init__(
        self,
        backbone: Backbone,
        head: PrototypeHead,
        adjustment: Tensor | None = None,
        *,
        frozen: bool = False,
        shifting: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.head, self.frozen, self.shifting = backbone, head, frozen, shifting
        self.register_buffer("adjustment", adjustment, persistent=False)
        if frozen:
            backbone.requires_grad_(False)

    def train(self, mode: bool = True) -> "Classifier":
        """Training mode, or evaluation; a frozen backbone does not leave evaluation."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
            for module in self.backbone.modules():
                if self.shifting and isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    module.train(mode)
        return self

    def forward(self, images: Float[Tensor, "n c h w"]) -> Similarities:
        return self.logits(self.backbone(images))

    def logits(self, embeddings: Embeddings) -> Similarities:
        """What decides the class of embeddings."""
        logits = self.head(embeddings)
        return logits if self.adjustment is None else logits - self.adjustment

    @property
    def class_counts(self) -> list[int]:
        """Training images of each class."""
        counts = self.head.class_counts
        return [1] * self.head.num_classes if counts is None else counts.tolist()

    @torch.no_grad()
    def predict(self, embeddings: Embeddings) -> Int[Tensor, " n"]:
        """The class with the largest logit."""
        return self.head.predict(embeddings) if self.adjustment is None else self.logits(embeddings).argmax(1)


def load_data(config: Config) -> DataSet:
    """The data set that `config` names, its images as large as the model needs."""
    options = {"root": config.data_root, "download": config.download, "max_unreadable": config.max_unreadable}
    dataset = load(config.data, image_size=config.image_size, **options)
    side, least = min(dataset.shape[1:]), LEAST_SIDE.get(config.model, 1)
    if config.image_size is None and side < least <= 2 * side:
        dataset = load(config.data, image_size=2 * side, **options)
    dataset = dataset if config.augment else replace(dataset, augmentation=Augmentation())
    if config.imbalance is not None:
        dataset = imbalance(dataset, **asdict(parse_imbalance(config.imbalance)))
    return hold_out(dataset, config.hold_out) if config.hold_out else dataset


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
        class_weight=None if config.class_weights == "none" else [1.0] * len(facts.classes),
        init=config.prototype_init,
        trainable=config.trainable_prototypes,
        sample_rate=config.sample_rate,
    )
    return Classifier(
        backbone,
        head,
        logit_adjustment(facts.class_counts, config.logit_adjustment),
        frozen=config.learns != "all",
        shifting=config.shift_batch_norm,
    )


def logit_adjustment(counts: Sequence[int], tau: float) -> Tensor | None:
    r""":math:`\tau \log \pi_j`, what skewed classes add to the logits (Menon et al. 2021)."""
    if not tau:
        return None
    shares = torch.tensor(counts, dtype=torch.float64)
    return (tau * (shares / shares.sum()).log()).float()


@torch.no_grad()
def calibrate(backbone: Backbone, dataset: DataSet, config: Config, device: torch.device) -> None:
    """Let the network see normalised training images before its first step.

    They are drawn at random, as files come class by class, and not augmented.
    """
    first = Batches(
        replace(dataset, augmentation=Augmentation()),
        batch_size=min(CALIBRATION_SAMPLES, len(dataset.train)),
        training=True,
        seed=config.seed,
        device=device,
        workers=config.workers,
    ).epoch(0)
    backbone.calibrate(next(iter(first)).images)


def build_optimizer(config: Config, backbone: Backbone, head: PrototypeHead) -> torch.optim.Optimizer:
    """One group for the network, one for the prototypes; each remembers its peak learning rate."""
    weights = [p for p in backbone.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": weights, "lr": config.lr, "weight_decay": config.weight_decay}]
    if config.trainable_prototypes and config.learns != "nothing":
        groups += head.param_groups(config.prototype_lr, config.prototype_weight_decay)
    sampled = config.sample_rate is not None
    if config.optimizer == "sgd":
        make = RowSGD if sampled else torch.optim.SGD
        optimizer = make(groups, momentum=config.momentum, nesterov=config.nesterov)
    else:
        plain = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        make = RowAdamW if sampled else plain
        optimizer = make(groups, betas=(config.momentum, 0.999))
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer
