"""A small network that learns CIFAR-10 in about ten epochs, based on airbench (Jordan 2024)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tammes._common.types import Embeddings
from tammes.lab.models.backbone import Backbone, Images


class FastNet(Backbone):
    """Whitened 2 x 2 patches, three groups of two convolutions, then global max pooling.

    The first layer is set by `calibrate` and frozen. The other convolutions are initialized to the identity
    on their first channels. Batch norm has a bias and no scale. Features are the output of a GELU, so they
    are above -0.17 but can be negative.

    Args:
        in_channels: number of image channels. Images must be at least 9 x 9.
        widths: channels of the three groups.
        embedding: width of a linear layer after the features; None for no such layer.
    """

    def __init__(
        self,
        in_channels: int,
        widths: tuple[int, int, int] = (64, 256, 256),
        *,
        embedding: int | None = None,
    ) -> None:
        super().__init__(widths[-1], nonnegative=False, embedding=embedding)
        patches = 8 * in_channels
        self.whitening = nn.Conv2d(in_channels, patches, 2)
        self.whitening.weight.requires_grad = False
        nn.init.zeros_(self.whitening.bias)  # type: ignore[arg-type]
        inputs = (patches, *widths[:2])
        self.groups = nn.Sequential(nn.GELU(), *map(_group, inputs, widths))

    def features(self, images: Images) -> Embeddings:
        return self.groups(self.whitening(images)).amax((2, 3))

    @torch.no_grad()
    def calibrate(self, images: Images) -> None:
        """Set the whitening filters from standardized training images. A thousand images are enough."""
        filters = whitening_filters(images)
        self.whitening.weight.copy_(torch.cat([filters, -filters]))


def whitening_filters(images: Images, eps: float = 5e-4) -> Float[Tensor, "filters c 2 2"]:
    r"""Filters whose responses to the 2 x 2 patches of `images` are uncorrelated and of variance about 1.

    The eigenvectors of the patches' second-moment matrix, each divided by :math:`\sqrt{\lambda + \epsilon}`.
    `eps` keeps directions of low variance from being amplified into noise.
    """
    c = images.shape[1]
    moments = torch.zeros(4 * c, 4 * c, dtype=torch.float64, device=images.device)
    for part in images.split(256):
        patches = part.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 4 * c)
        moments += (patches.T @ patches).double() / len(patches) * (len(part) / len(images))
    values, vectors = torch.linalg.eigh(moments)
    scaled = vectors / (values + eps).sqrt()
    return scaled.T.reshape(-1, c, 2, 2).to(images.dtype)


def _group(inputs: int, outputs: int) -> nn.Sequential:
    """Halve the resolution and output `outputs` channels."""
    return nn.Sequential(
        _conv(inputs, outputs),
        nn.MaxPool2d(2),
        _norm(outputs),
        nn.GELU(),
        _conv(outputs, outputs),
        _norm(outputs),
        nn.GELU(),
    )


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(conv.weight.data[:inputs])
    return conv


def _norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, momentum=0.4)
    norm.weight.requires_grad = False
    return norm
