"""The one door: a name to a network."""

from collections.abc import Callable

import torch

from tammes.checks import at_least, nearest
from tammes.models.backbone import Backbone
from tammes.models.cnn4 import CNN4
from tammes.models.fastnet import FastNet
from tammes.models.resnet import ResNet

Size = tuple[int, int]

MODELS: dict[str, Callable[[int, Size, int | None], Backbone]] = {
    "cnn4": lambda c, size, d: CNN4(c, size, embedding=d),
    "resnet18": lambda c, _, d: ResNet(c, (2, 2, 2, 2), embedding=d),
    "resnet34": lambda c, _, d: ResNet(c, (3, 4, 6, 3), embedding=d),
    "fastnet": lambda c, _, d: FastNet(c, (64, 256, 256), embedding=d),
    "fastnet-half": lambda c, _, d: FastNet(c, (32, 128, 128), embedding=d),
}
LEAST_SIDE = {"cnn4": 10, "fastnet": 9, "fastnet-half": 9}


def build(
    name: str, *, in_channels: int, image_size: int | tuple[int, int], embedding: int | None = None
) -> Backbone:
    """The network `name`, its weights at random, stored channels-last.

    Args:
        name: a key of `MODELS`, or `timm/` and any name that timm knows, as in `timm/resnet50`.
        in_channels: channels of the images.
        image_size: their side, or their height and width.
        embedding: width d of a linear layer behind the features; None for the features themselves.

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
    return _make(name, in_channels, size, embedding).to(memory_format=torch.channels_last)  # type: ignore


def _make(name: str, in_channels: int, size: Size, embedding: int | None) -> Backbone:
    if name in MODELS:
        return MODELS[name](in_channels, size, embedding)
    library, _, rest = name.partition("/")
    if library == "timm" and rest:
        from tammes.models.timm_models import Timm

        return Timm(rest, in_channels, size, embedding=embedding)
    raise ValueError(
        f"Unknown model {name!r}. {nearest(name, MODELS)} Others: timm/NAME, as in timm/resnet50."
    )
