"""IResNet, the residual network of face recognition: 112 x 112 images to 512-dimensional embeddings."""

import math

from torch import Tensor, nn

from tammes._common.types import Embeddings
from tammes.lab.models.backbone import Backbone, Images

WIDTH = 512


class IResNet(Backbone):
    """Four groups of improved residual blocks, as in insightface, then a linear layer.

    The stem keeps the resolution and every group halves it. The final feature map is flattened rather than
    pooled, because position in a face matters. The last layer is a batch norm whose scale is fixed at 1.

    Args:
        in_channels: number of image channels.
        image_size: height and width.
        blocks: number of blocks in each group.
        widths: channels of each group.
        stem_stride: 2 halves the resolution in the stem, to save compute.
        embedding: width of the linear layer. Default: 512.
    """

    def __init__(
        self,
        in_channels: int,
        image_size: tuple[int, int],
        blocks: tuple[int, int, int, int],
        *,
        widths: tuple[int, int, int, int] = (64, 128, 256, 512),
        stem_stride: int = 1,
        embedding: int | None = None,
    ) -> None:
        width = embedding or WIDTH
        super().__init__(width, nonnegative=False)
        first, last = widths[0], widths[-1]
        stem = nn.Conv2d(in_channels, first, 3, stem_stride, padding=1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(first), nn.PReLU(first))
        self.groups = nn.Sequential(*map(_group, (first, *widths[:3]), widths, blocks))
        places = math.prod(-(-side // (16 * stem_stride)) for side in image_size)
        norm = nn.BatchNorm1d(width)
        norm.weight.requires_grad = False
        self.out = nn.Sequential(nn.BatchNorm2d(last), nn.Flatten(), nn.Linear(last * places, width), norm)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Images) -> Embeddings:
        return self.out(self.groups(self.stem(images)))


class PreActivationBlock(nn.Module):
    """Norm, convolution, norm, PReLU, strided convolution, norm; no activation after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.PReLU(outputs),
            nn.Conv2d(outputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + self.shortcut(x)


def _group(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(
        PreActivationBlock(inputs, outputs, 2),
        *(PreActivationBlock(outputs, outputs, 1) for _ in range(blocks - 1)),
    )
