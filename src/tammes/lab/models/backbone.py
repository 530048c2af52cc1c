"""Networks: `Backbone`, the base class (images in, embeddings out), and `build`, any of them by name."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tammes._common.checks import at_least, did_you_mean
from tammes._common.types import Embeddings

Images = Float[Tensor, "n c h w"]


class Backbone(nn.Module):
    r"""A network without its classification layer. The prototypes live in a head.

    Args:
        width: number of features returned by `features`.
        nonnegative: whether these features are always non-negative, as after a ReLU.
        embedding: width of a linear layer after the features; None for no such layer.

    Attributes:
        neck: last layer of the embeddings; the identity unless `add_neck` was called.
        out_features: d, the dimension of the embeddings.
        nonnegative: whether embeddings are always non-negative. If so, no two embeddings are more than 90
            degrees apart, and on balanced data the mean sample margin cannot exceed :math:`\sqrt{k/(k-1)}`,
            which is below the simplex's :math:`k/(k-1)` (docs/errata, 14). A linear layer after the ReLU
            removes this limit.
    """

    out_features: int
    nonnegative: bool

    def __init__(self, width: int, *, nonnegative: bool, embedding: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Identity() if embedding is None else nn.Linear(width, embedding)
        self.neck: nn.Module = nn.Identity()
        self.out_features = width if embedding is None else embedding
        self.nonnegative = nonnegative and embedding is None

    def features(self, images: Images) -> Embeddings:
        """Features before the embedding layer; the output if there is none."""
        raise NotImplementedError

    def add_neck(self) -> None:
        """Append a BNNeck to the embeddings."""
        self.neck, self.nonnegative = BNNeck(self.out_features), False

    def before_neck(self, images: Images) -> Embeddings:
        """Embeddings before the neck."""
        return self.embedding(self.features(images))

    def forward(self, images: Images) -> Embeddings:
        return self.neck(self.before_neck(images))

    def calibrate(self, images: Images) -> None:
        """Initialize data-dependent weights from standardized training images. The default does nothing."""


class AroundNeck(nn.Module):
    """Returns the embeddings before and after the neck of a backbone."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Images) -> tuple[Embeddings, Embeddings]:
        before = self.backbone.before_neck(images)
        return before, self.backbone.neck(before)


HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Dtypes of autocast by the names of the `autocast` setting."""


def embed(
    backbone: Callable[[Images], Embeddings], images: Images, *, flip: bool, autocast: str = "none"
) -> Embeddings:
    """Embed images; with `flip`, average the embeddings of each image and its mirror image.

    Flipping costs a second pass and usually improves test accuracy if images have no preferred side. With
    `autocast` the backbone runs in half precision and the embeddings are float32.
    """
    with in_precision(autocast, images.device):
        found = backbone(images) + backbone(images.flip(-1)) if flip else backbone(images)
    found = found if autocast == "none" else found.float()
    return found / 2 if flip else found


def in_precision(autocast: str, device: torch.device) -> contextlib.AbstractContextManager:
    """The context of an `autocast` setting: "none", "bf16" or "fp16"."""
    half = HALF.get(autocast)
    return contextlib.nullcontext() if half is None else torch.autocast(device.type, half)


class BNNeck(nn.BatchNorm1d):
    """Batch norm without a bias (Luo et al. 2019, "Bag of tricks").

    A triplet loss optimizes distances and a softmax loss directions, so they conflict on a shared embedding.
    The triplet loss applies before the neck and the softmax loss after it, where features are centered on the
    origin. There is no bias, so that decision boundaries pass through the origin.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.bias.requires_grad = False

    def forward(self, input: Embeddings) -> Embeddings:
        if not self.training or len(input) > 1:
            return super().forward(input)
        # One embedding has no variance: normalize it as in evaluation.
        return nn.functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


NetworkSize = tuple[int, int]

# Each network is imported when it is built: its module imports `Backbone` from this one.


def _cnn4(channels: int, size: NetworkSize, embedding: int | None, **options: Any) -> Backbone:
    from tammes.lab.models.cnn4 import CNN4

    return CNN4(channels, size, embedding=embedding, **options)


def _resnet(channels: int, _: NetworkSize, embedding: int | None, **options: Any) -> Backbone:
    from tammes.lab.models.resnet import ResNet

    return ResNet(channels, embedding=embedding, **options)


def _fastnet(channels: int, _: NetworkSize, embedding: int | None, **options: Any) -> Backbone:
    from tammes.lab.models.fastnet import FastNet

    return FastNet(channels, embedding=embedding, **options)


def _iresnet(channels: int, size: NetworkSize, embedding: int | None, **options: Any) -> Backbone:
    from tammes.lab.models.iresnet import IResNet

    return IResNet(channels, size, embedding=embedding, **options)


def _mobilefacenet(channels: int, size: NetworkSize, embedding: int | None) -> Backbone:
    from tammes.lab.models.mobilefacenet import MobileFaceNet

    return MobileFaceNet(channels, size, embedding=embedding)


SMALL: dict[str, Any] = {"widths": (32, 64, 128, 256), "strides": (2, 2, 2, 2, 1)}
"""Total stride 16, as in a ResNet-50 with last stride 1, for 128 x 64 images."""
MINI: dict[str, Any] = {"widths": (32, 64, 128, 256), "stem_stride": 2}

MODELS: dict[str, Callable[[int, NetworkSize, int | None], Backbone]] = {
    "cnn4": _cnn4,
    "cnn4-hidden": partial(_cnn4, hidden=128),
    "cnn4-padded": partial(_cnn4, hidden=128, padded=True),
    "resnet18": partial(_resnet, blocks=(2, 2, 2, 2)),
    "resnet34": partial(_resnet, blocks=(3, 4, 6, 3)),
    "resnet-small": partial(_resnet, blocks=(1, 1, 1, 1), **SMALL),
    "fastnet": partial(_fastnet, widths=(64, 256, 256)),
    "fastnet-half": partial(_fastnet, widths=(32, 128, 128)),
    "iresnet18": partial(_iresnet, blocks=(2, 2, 2, 2)),
    "iresnet34": partial(_iresnet, blocks=(3, 4, 6, 3)),
    "iresnet50": partial(_iresnet, blocks=(3, 4, 14, 3)),
    "iresnet100": partial(_iresnet, blocks=(3, 13, 30, 3)),
    "iresnet-mini": partial(_iresnet, blocks=(1, 2, 2, 1), **MINI),
    "mobilefacenet": _mobilefacenet,
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
