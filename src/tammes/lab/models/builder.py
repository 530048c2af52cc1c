"""Build any network by name."""

from collections.abc import Callable
from typing import Any

import torch

from tammes._common.checks import at_least, did_you_mean
from tammes.lab.models.backbone import Backbone
from tammes.lab.models.cnn4 import CNN4
from tammes.lab.models.fastnet import FastNet
from tammes.lab.models.iresnet import IResNet
from tammes.lab.models.mobilefacenet import MobileFaceNet
from tammes.lab.models.resnet import ResNet

NetworkSize = tuple[int, int]

SMALL: dict[str, Any] = {"widths": (32, 64, 128, 256), "strides": (2, 2, 2, 2, 1)}
"""Total stride 16, as in a ResNet-50 with last stride 1, for 128 x 64 images."""

MODELS: dict[str, Callable[[int, NetworkSize, int | None], Backbone]] = {
    "cnn4": lambda c, size, d: CNN4(c, size, embedding=d),
    "cnn4-hidden": lambda c, size, d: CNN4(c, size, hidden=128, embedding=d),
    "cnn4-padded": lambda c, size, d: CNN4(c, size, hidden=128, padded=True, embedding=d),
    "resnet18": lambda c, _, d: ResNet(c, (2, 2, 2, 2), embedding=d),
    "resnet34": lambda c, _, d: ResNet(c, (3, 4, 6, 3), embedding=d),
    "resnet-small": lambda c, _, d: ResNet(c, (1, 1, 1, 1), embedding=d, **SMALL),
    "fastnet": lambda c, _, d: FastNet(c, (64, 256, 256), embedding=d),
    "fastnet-half": lambda c, _, d: FastNet(c, (32, 128, 128), embedding=d),
    "iresnet18": lambda c, size, d: IResNet(c, size, (2, 2, 2, 2), embedding=d),
    "iresnet34": lambda c, size, d: IResNet(c, size, (3, 4, 6, 3), embedding=d),
    "iresnet50": lambda c, size, d: IResNet(c, size, (3, 4, 14, 3), embedding=d),
    "iresnet100": lambda c, size, d: IResNet(c, size, (3, 13, 30, 3), embedding=d),
    "iresnet-mini": lambda c, size, d: IResNet(
        c, size, (1, 2, 2, 1), widths=(32, 64, 128, 256), stem_stride=2, embedding=d
    ),
    "mobilefacenet": lambda c, size, d: MobileFaceNet(c, size, embedding=d),
}
"""Network constructors by name; arguments: number of channels, image size, embedding dimension."""

LEAST_SIDE = {"cnn4": 10, "cnn4-hidden": 10, "cnn4-padded": 4, "fastnet": 9, "fastnet-half": 9}


def build(
    name: str,
    *,
    in_channels: int,
    image_size: int | tuple[int, int],
    embedding: int | None = None,
    neck: bool = False,
    last_stride: int = 2,
    pretrained: str | None = None,
) -> Backbone:
    """Build the network `name`, in channels-last memory format and with random weights unless `pretrained`.

    Args:
        name: a key of `MODELS`, or `timm/` followed by a timm model name, as in `timm/resnet50`.
        in_channels: number of image channels.
        image_size: image side, or height and width.
        embedding: width d of a linear layer after the features; None for the features themselves.
        neck: append a BNNeck.
        last_stride: stride of the last stage of a timm ResNet. 1 keeps the resolution of the stage before.
        pretrained: weights of a timm model: a `.safetensors` file, "timm" to download the published ones, or
            "package" for those that `tammes[weights]` installs.

    >>> build("cnn4", in_channels=1, image_size=28).out_features
    1600
    >>> build("resnet18", in_channels=3, image_size=32, embedding=64).out_features
    64
    """
    at_least("in_channels", in_channels, 1)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    least = LEAST_SIDE.get(name, 1)
    if min(size) < least:
        raise ValueError(
            f"{name} needs images of at least {least} x {least} pixels, got {size[0]} x {size[1]}. "
            f"Upscale them: image_size={2 * least - 2}."
        )
    if embedding is not None:
        at_least("embedding", embedding, 1)
    made = _make(name, in_channels, size, embedding, {"last_stride": last_stride, "pretrained": pretrained})
    if neck:
        made.add_neck()
    return made.to(memory_format=torch.channels_last)  # type: ignore


def _make(
    name: str, in_channels: int, size: NetworkSize, embedding: int | None, of_timm: dict[str, Any]
) -> Backbone:
    if rest := timm_name(name):
        from tammes.lab.models.timm_models import Timm

        return Timm(rest, in_channels, size, embedding=embedding, **of_timm)
    check_model(name, **of_timm)
    return MODELS[name](in_channels, size, embedding)


def timm_name(name: str) -> str:
    """The timm part of a model name; empty for our own models.

    >>> timm_name("timm/resnet50"), timm_name("cnn4")
    ('resnet50', '')
    """
    library, _, rest = name.partition("/")
    return rest if library == "timm" else ""


def check_model(name: str, *, last_stride: int = 2, pretrained: str | None = None) -> None:
    """Check the name and options of a network and that its weights are available, without building it."""
    if rest := timm_name(name):
        from tammes.lab.models.timm_models import check_weights

        check_weights(rest, pretrained)
        return
    if name not in MODELS:
        raise ValueError(
            f"Unknown model {name!r}. {did_you_mean(name, MODELS)} Others: timm/NAME, as in timm/resnet50."
        )
    given = {"last_stride": last_stride} if last_stride != 2 else {}
    given |= {"pretrained": pretrained} if pretrained is not None else {}
    if given:
        options = ", ".join(f"{option}={value!r}" for option, value in given.items())
        raise ValueError(f"Only timm models take {options}, not {name}. Omit it, or use --model timm/NAME.")
