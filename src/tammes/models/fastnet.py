"""A small net that learns CIFAR-10 in about ten epochs, after what airbench (Jordan 2024) shows to matter."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tammes.models.backbone import Backbone, Images
from tammes.types import Embeddings


class FastNet(Backbone):
    """Whitened 2 x 2 patches, then three groups of two convolutions, then the maximum over the image.

    The first layer is set by `calibrate` and stays as it is; the other convolutions start as the identity
    on their first channels; batch norm has a bias and no scale. Features come out of a GELU, so they lie
    above -0.17 but are not non-negative.

    Args:
        in_channels: of the images, which must be at least 9 x 9.
        widths: channels of the three groups.
        embedding: width of a linear layer behind the features; None for none.
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
        """Whiten the 2 x 2 patches of normalised training images; a thousand images are plenty."""
        filters = whitening_filters(images)
        self.whitening.weight.copy_(torch.cat([filters, -filters]))


def whitening_filters(images: Images, eps: float = 5e-4) -> Float[Tensor, "filters c 2 2"]:
    r"""Filters whose responses to the 2 x 2 patches of `images` are uncorrelated and of variance about 1.

    The eigenvectors of the patches' second moments, each divided by :math:`\sqrt{\lambda + \epsilon}`;
    `eps` keeps directions that hardly occur from becoming noise.
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
    """Half the resolution, `outputs` channels."""
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
