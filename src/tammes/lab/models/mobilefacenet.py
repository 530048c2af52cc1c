"""MobileFaceNet (Chen et al. 2018): a million weights, for mobile phones."""

from typing import NamedTuple

from torch import Tensor, nn

from tammes._common.types import Embeddings
from tammes.lab.models.backbone import Backbone, Images

WIDTH = 512


class BottleneckStage(NamedTuple):
    """A row of the paper's Table 1: bottlenecks with this `expansion`, the first of them strided."""

    expansion: int
    channels: int
    blocks: int
    stride: int


STAGES = (
    BottleneckStage(2, 64, 5, 2),
    BottleneckStage(4, 128, 1, 2),
    BottleneckStage(2, 128, 6, 1),
    BottleneckStage(4, 128, 1, 2),
    BottleneckStage(2, 128, 2, 1),
)


class MobileFaceNet(Backbone):
    """Depthwise bottlenecks, then a depthwise convolution over the whole feature map.

    The last convolution learns a weight for every position in the face, where average pooling weights all
    equally.

    Args:
        in_channels: number of image channels.
        image_size: height and width.
        embedding: width of the last layer. Default: 512; the paper uses 128.
    """

    def __init__(
        self, in_channels: int, image_size: tuple[int, int], *, embedding: int | None = None
    ) -> None:
        width = embedding or WIDTH
        super().__init__(width, nonnegative=False)
        layers = [*_conv(in_channels, 64, 3, stride=2), *_conv(64, 64, 3, groups=64)]
        channels = 64
        for expansion, outputs, blocks, stride in STAGES:
            for block in range(blocks):
                layers.append(Bottleneck(channels, outputs, expansion, stride if block == 0 else 1))
                channels = outputs
        layers += _conv(channels, 512, 1)
        self.net = nn.Sequential(*layers)
        height, breadth = (-(-side // 16) for side in image_size)
        self.out = nn.Sequential(
            nn.Conv2d(512, 512, (height, breadth), groups=512, bias=False),
            nn.BatchNorm2d(512),
            nn.Flatten(),
            nn.Linear(512, width, bias=False),
            nn.BatchNorm1d(width),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Images) -> Embeddings:
        return self.out(self.net(images))


class Bottleneck(nn.Module):
    """Expand, depthwise convolution, project; with a shortcut if the shape is unchanged."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = expansion * inputs
        self.residual = nn.Sequential(
            *_conv(inputs, wide, 1),
            *_conv(wide, wide, 3, stride=stride, groups=wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.keeps_shape = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.residual(x)
        return x + y if self.keeps_shape else y


def _conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.PReLU(outputs)]
