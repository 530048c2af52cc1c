"""The one door: a name to a network."""

from collections.abc import Callable
from typing import Any

import torch

from tammes.checks import at_least, nearest
from tammes.models.backbone import Backbone
from tammes.models.cnn4 import CNN4
from tammes.models.fastnet import FastNet
from tammes.models.iresnet import IResNet
from tammes.models.mobilefacenet import MobileFaceNet
from tammes.models.resnet import ResNet

Size = tuple[int, int]

SMALL: dict[str, Any] = {"widths": (32, 64, 128, 256), "strides": (2, 2, 2, 2, 1)}
"""A sixteenth of the resolution at the end, as in a ResNet-50 with last stride 1, for images of 128 x 64."""

MODELS: dict[str, Callable[[int, Size, int | None], Backbone]] = {
    "cnn4": lambda c, size, d: CNN4(c, size, embedding=d),
    "cnn4-hidden": lambda c, size, d: CNN4(c, size, hidden=128, embedding=d),
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
LEAST_SIDE = {"cnn4": 10, "cnn4-hidden": 10, "fastnet": 9, "fastnet-half": 9}


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
    """The network `name`, its weights at random unless it is `pretrained`, stored channels-last.

    Args:
        name: a key of `MODELS`, or `timm/` and any name that timm knows, as in `timm/resnet50`.
        in_channels: channels of the images.
        image_size: their side, or their height and width.
        embedding: width d of a linear layer behind the features; None for the features themselves.
        neck: end in a BNNeck.
        last_stride: 1 for the last stage of one of timm's ResNets to keep the resolution of the one before.
        pretrained: for a network of timm, a `.safetensors` file of its weights, or "timm" to fetch those it
            publishes.

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
            f"Scale them up: image_size={2 * least - 2}."
        )
    if embedding is not None:
        at_least("embedding", embedding, 1)
    made = _make(name, in_channels, size, embedding, {"last_stride": last_stride, "pretrained": pretrained})
    if neck:
        made.add_neck()
    return made.to(memory_format=torch.channels_last)  # type: ignore


def _make(
    name: str, in_channels: int, size: Size, embedding: int | None, of_timm: dict[str, Any]
) -> Backbone:
    library, _, rest = name.partition("/")
    if library == "timm" and rest:
        from tammes.models.timm_models import Timm

        return Timm(rest, in_channels, size, embedding=embedding, **of_timm)
    if of_timm != {"last_stride": 2, "pretrained": None}:
        given = ", ".join(f"{option}={value!r}" for option, value in of_timm.items())
        raise ValueError(f"Only networks of timm have options {given}, not {name}. Leave them out.")
    if name in MODELS:
        return MODELS[name](in_channels, size, embedding)
    raise ValueError(
        f"Unknown model {name!r}. {nearest(name, MODELS)} Others: timm/NAME, as in timm/resnet50."
    )
