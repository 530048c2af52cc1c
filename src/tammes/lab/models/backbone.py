"""`Backbone`, the base class of all networks: images in, embeddings out."""

import contextlib
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

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
