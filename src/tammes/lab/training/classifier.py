"""A network and its prototypes as one module, built from a config and the properties of a data set."""

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tammes._common.types import Embeddings, Similarities
from tammes.heads import PrototypeHead, RowAdamW, RowSGD
from tammes.lab.data import Augmentation, Batches, DataSet, hold_out, imbalance, load
from tammes.lab.data.class_imbalance import parse_imbalance
from tammes.lab.data.image_folders import common_size, network_size
from tammes.lab.data.loading import PHOTOS, STANDARD, STANDARD_FILES, is_list, is_photo_folder
from tammes.lab.models import Backbone, build
from tammes.lab.models.backbone import LEAST_SIDE, timm_name
from tammes.lab.training.config import ConfigFields, ResolvedConfig, fine_tunes
from tammes.lab.training.fine_tuning import SCRATCH_SIDE, pretrained_side
from tammes.lab.training.record_checks import check_list, check_names

CALIBRATION_SAMPLES = 1000
CALIBRATION_PIXELS = 2**22
"""Fewer samples of large images are enough, and a thousand would take gigabytes."""
MOST_PIXELS = 2**24
"""Maximum size of a network input. A larger value in a stored run means that it is damaged."""


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Properties of a data set that a trained network needs to predict without it."""

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
        classes = check_names("classes", stored["classes"])
        shape = check_list("shape", stored["shape"], 3, whole=True, low=1)
        if shape[0] not in (1, 3) or shape[1] * shape[2] > MOST_PIXELS:
            raise ValueError(f"images cannot have the shape {shape}")
        (name,) = check_names("name", [stored["name"]])
        return cls(
            name=name,
            classes=classes,
            shape=shape,
            mean=check_list("mean", stored["mean"], shape[0]),
            std=check_list("std", stored["std"], shape[0]),
            class_counts=check_list("class_counts", stored["class_counts"], len(classes), whole=True, low=0),
        )


class Classifier(nn.Module):
    """Images to logits: a backbone, then a head.

    Args:
        backbone: maps images to embeddings.
        head: maps embeddings to logits.
        adjustment: subtracted from the logits of each class.
        frozen: keep the backbone in evaluation mode, also during training.
        shifting: let the batch-norm statistics of a frozen backbone follow the training data.
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
        """Set training or evaluation mode. A frozen backbone stays in evaluation mode."""
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
        """Logits of embeddings, after logit adjustment."""
        logits = self.head(embeddings)
        return logits if self.adjustment is None else logits - self.adjustment

    @property
    def class_counts(self) -> list[int]:
        """Number of training images of each class."""
        counts = self.head.class_counts
        return [1] * self.head.num_classes if counts is None else counts.tolist()

    @torch.no_grad()
    def predict(self, embeddings: Embeddings) -> Int[Tensor, " n"]:
        """The class with the largest logit."""
        return self.head.predict(embeddings) if self.adjustment is None else self.logits(embeddings).argmax(1)


def load_data(config: ResolvedConfig, size: tuple[int, int] | None = None) -> DataSet:
    """Load the data set of `config`, with images as large as the model needs, or of the given `size`."""
    dataset = _loaded(config, size or config.image_size)
    dataset = replace(dataset, augmentation=_augmentation(config, dataset))
    if config.imbalance is not None:
        dataset = imbalance(dataset, **asdict(parse_imbalance(config.imbalance)))
    return hold_out(dataset, config.hold_out) if config.hold_out else dataset


def _loaded(config: ResolvedConfig, size: int | tuple[int, int] | None) -> DataSet:
    options: dict[str, Any] = {"root": config.data_root, "download": config.download}
    options["max_unreadable"] = config.max_unreadable
    if config.augment_style != "fast" and (is_photo_folder(config.data) or is_list(config.data)):
        options["memory_limit"] = 0  # random crops need the files
    if fine_tunes(config.data, config.pretrained):
        from tammes.lab.models.timm_models import expected_input

        own = expected_input(timm_name(config.model))
        fitted = functools.partial(network_size, own=pretrained_side(own.side, config.device))
        dataset = load(config.data, image_size=size, size_of=fitted, **options)
        return replace(dataset, mean=own.mean, std=own.std)
    if is_photo_folder(config.data):
        options["size_of"] = functools.partial(common_size, default=SCRATCH_SIDE)
    dataset = load(config.data, image_size=size, **options)
    side, least = min(dataset.shape[1:]), LEAST_SIDE.get(config.model, 1)
    if size is None and side < least <= 2 * side:
        return load(config.data, image_size=2 * side, **options)
    return dataset


def _augmentation(config: ConfigFields, dataset: DataSet) -> Augmentation:
    """Augmentation of the training images."""
    if not config.augment:
        return Augmentation()
    if config.augment_style == "fast":
        return dataset.augmentation
    if config.augment_style == "photos":
        return PHOTOS
    if dataset.augmentation.crop is not None:
        return replace(dataset.augmentation, **STANDARD_FILES)
    if config.data not in STANDARD:
        raise ValueError(
            f"augment_style='standard' is defined for {', '.join(STANDARD)}, class folders and lists of "
            f"images, got data={config.data!r}. Use augment_style='fast'."
        )
    return STANDARD[config.data]


def build_classifier(config: ResolvedConfig, facts: DataFacts) -> Classifier:
    """Build network and prototypes with the initial weights of `config` and its seed."""
    torch.manual_seed(config.seed)
    backbone = _backbone(config, facts)
    head = PrototypeHead(
        backbone.out_features,
        len(facts.classes),
        config.parsed,
        class_counts=facts.class_counts,
        class_weight=None if config.class_weights == "none" else [1.0] * len(facts.classes),
        init="random" if config.prototype_init == "linear" else config.prototype_init,
        trainable=config.trainable_prototypes,
        centers=config.centers,
        sample_rate=config.sample_rate,
    )
    if config.prototype_init == "linear":
        nn.init.kaiming_uniform_(head.weight.view(-1, head.in_features), a=math.sqrt(5))  # as nn.Linear
    return Classifier(
        backbone,
        head,
        logit_adjustment(facts.class_counts, config.logit_adjustment),
        frozen=config.learns != "all",
        shifting=config.shift_batch_norm,
    )


def _backbone(config: ResolvedConfig, facts: DataFacts) -> Backbone:
    channels, height, width = facts.shape
    return build(
        config.model,
        in_channels=channels,
        image_size=(height, width),
        embedding=config.embedding,
        neck=config.neck,
        last_stride=config.last_stride,
        pretrained=config.pretrained,
    )


def restored_classifier(
    config: ResolvedConfig, facts: DataFacts, weights: Mapping[str, Tensor]
) -> Classifier:
    """Build the classifier with `weights`. Check shapes first: a damaged config could ask for any size."""
    # Skip costly initialization (packing, downloads): the weights are overwritten.
    config = replace(config, prototype_init="random", pretrained=None)
    for name, shape in _shapes(config, facts).items():
        there = tuple(weights[name].shape) if name in weights else "missing"
        if there != shape:
            raise ValueError(f"the weights {name} should be {shape}, but are {there}")
    with warnings.catch_warnings(action="ignore"):  # advice on the objective comes too late
        classifier = build_classifier(config, facts)
    classifier.load_state_dict(dict(weights))
    return classifier.eval()


def _shapes(config: ResolvedConfig, facts: DataFacts) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights, from a network on the meta device; empty if it cannot be built there."""
    try:
        with torch.device("meta"):
            backbone = _backbone(config, facts)
    except NotImplementedError:  # its constructor reads values
        return {}
    shapes = {f"backbone.{name}": tuple(value.shape) for name, value in backbone.state_dict().items()}
    several = (config.centers,) if config.centers > 1 else ()
    return shapes | {"head.weight": (len(facts.classes), *several, backbone.out_features)}


def logit_adjustment(counts: Sequence[int], tau: float) -> Tensor | None:
    r""":math:`\tau \log \pi_j` of the class priors, to subtract from the logits (Menon et al. 2021)."""
    if not tau:
        return None
    shares = torch.tensor(counts, dtype=torch.float64)
    return (tau * (shares / shares.sum()).log()).float()


@torch.no_grad()
def calibrate(backbone: Backbone, dataset: DataSet, config: ResolvedConfig, device: torch.device) -> None:
    """Calibrate the network on standardized training images before its first step.

    The images are sampled at random, because files are sorted by class, and not augmented.
    """
    pixels = dataset.shape[1] * dataset.shape[2]
    first = Batches(
        replace(dataset, augmentation=Augmentation()),
        batch_size=min(CALIBRATION_SAMPLES, len(dataset.train), max(1, CALIBRATION_PIXELS // pixels)),
        training=True,
        seed=config.seed,
        device=device,
        workers=config.workers,
    ).epoch(0)
    backbone.calibrate(next(iter(first)).images)


def norm_biases(backbone: Backbone) -> list[nn.Parameter]:
    """The trainable biases of the backbone's batch norms. Raises if there are none."""
    norms = [module for module in backbone.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    biases = [norm.bias for norm in norms if norm.bias is not None and norm.bias.requires_grad]
    if not biases:
        raise ValueError(
            f"norm_bias_factor is for batch norms, but {type(backbone).__name__} has none with a trainable "
            "bias. Leave it out."
        )
    return biases


PROTOTYPES = 1
"""Index of the prototypes' group in the optimizer, if they are trained."""


def build_optimizer(config: ResolvedConfig, backbone: Backbone, head: PrototypeHead) -> torch.optim.Optimizer:
    """Build the optimizer, with peak learning rates.

    Parameter groups: the network, prototypes, learned scales, and with `norm_bias_factor` the batch norms'
    biases.
    """
    factor = config.norm_bias_factor
    fast = [] if factor == 1 else norm_biases(backbone)
    weights = [p for p in backbone.parameters() if p.requires_grad and not any(p is bias for bias in fast)]
    groups: list[dict[str, Any]] = [{"params": weights, "lr": config.lr, "weight_decay": config.weight_decay}]
    if config.learns != "nothing":
        of_head = head.param_groups(config.prototype_lr, config.prototype_weight_decay)
        groups += of_head if config.trainable_prototypes else of_head[1:]
    if fast:
        groups.append(
            {"params": fast, "lr": factor * config.lr, "weight_decay": config.weight_decay / factor}
        )
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
