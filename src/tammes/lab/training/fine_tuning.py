"""Defaults for folders of photos: the network behind `--model auto`, and when to fine-tune it."""

from pathlib import Path

import torch

from tammes.lab.data.loading import is_photo_folder
from tammes.lab.models.packaged_weights import PACKAGED_MODEL, weights_installed
from tammes.lab.training.config import SCRATCH_MODEL, Config, ConfigFields, read_resolved

PRETRAINED = f"timm/{PACKAGED_MODEL}"
"""The network that is fine-tuned."""

CPU_SIDE = 128
"""Largest default image side of a pretrained network without an accelerator: 224 pixels take three times as
long."""
SCRATCH_SIDE = 64
"""Image side for photos of varying or larger sizes, without pretraining. Larger sizes mainly cost time."""


def model_and_weights(config: ConfigFields) -> tuple[str, str | None]:
    """Choose the network and its initial weights if `--model auto` and `--pretrained` leave them open."""
    model, weights = config.model, config.pretrained
    if model == "auto":
        wanted = is_photo_folder(config.data) and not config.from_scratch
        model = PRETRAINED if wanted and (weights or weights_installed()) else SCRATCH_MODEL
        weights = weights or ("timm" if model == PRETRAINED else None)
    if (model, weights) == (PRETRAINED, "timm") and weights_installed():
        weights = "package"  # the same weights without a download
    return model, weights


def has_neck(config: Config, pretrained: str | None) -> bool:
    """Whether embeddings are centered by default: for cosines on photos from scratch, or as in `start`.

    Max-pooled or rectified features have a large common mean, so their cosines differ little, and the few
    steps on a small folder do not move the mean to the origin.
    """
    if config.start is not None:
        stored = Path(config.start) / "config.json"
        return stored.is_file() and read_resolved(stored).neck
    return pretrained is None and config.of_cosines and is_photo_folder(config.data)


def pretrained_side(own: int, device: str) -> int:
    """The largest default image side of a network that was pretrained on squares of side `own`."""
    slow = device == "cpu" or (device == "auto" and not torch.accelerator.is_available())
    return min(own, CPU_SIDE) if slow else own
