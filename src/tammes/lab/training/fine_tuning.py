"""Defaults for folders of photos: the network behind `--model auto`, and when to fine-tune it."""

from typing import TYPE_CHECKING

import torch

from tammes.lab.data.loading import is_photo_folder
from tammes.lab.models.packaged_weights import PACKAGED_MODEL, weights_installed

if TYPE_CHECKING:
    from tammes.lab.training.config import ConfigFields

SMALL = "fastnet-half"
"""The network that is trained from scratch."""
PRETRAINED = f"timm/{PACKAGED_MODEL}"
"""The network that is fine-tuned."""

CPU_SIDE = 128
"""Largest default image side of a pretrained network without an accelerator: 224 pixels take three times as
long."""
SCRATCH_SIDE = 64
"""Image side for photos of varying or larger sizes, without pretraining. Larger sizes mainly cost time."""


def model_and_weights(config: "ConfigFields") -> tuple[str, str | None]:
    """Choose the network and its initial weights if `--model auto` and `--pretrained` leave them open."""
    model, weights = config.model, config.pretrained
    if model == "auto":
        wanted = is_photo_folder(config.data) and not config.from_scratch
        model = PRETRAINED if wanted and (weights or weights_installed()) else SMALL
        weights = weights or ("timm" if model == PRETRAINED else None)
    if (model, weights) == (PRETRAINED, "timm") and weights_installed():
        weights = "package"  # the same weights without a download
    return model, weights


def fine_tunes(data: str, pretrained: str | None) -> bool:
    """Whether a run on `data` fine-tunes a pretrained network on photos, which has its own defaults."""
    return pretrained is not None and is_photo_folder(data)


def pretrained_side(own: int, device: str) -> int:
    """The largest default image side of a network that was pretrained on squares of side `own`."""
    slow = device == "cpu" or (device == "auto" and not torch.accelerator.is_available())
    return min(own, CPU_SIDE) if slow else own


def could_be_fine_tuned(config: "ConfigFields") -> bool:
    """Whether the run trains from scratch only because no pretrained weights are installed."""
    return (
        config.model == SMALL
        and not config.from_scratch
        and config.start is None
        and not weights_installed()
        and is_photo_folder(config.data)
    )
