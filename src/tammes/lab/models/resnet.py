"""ResNets of basic blocks with a 3 x 3 stem and no max pooling: CIFAR-style ResNet-18, -34, a small one."""

from torch import Tensor, nn

from tammes._common.types import Embeddings
from tammes.lab.models.backbone import Backbone, Images


class ResNet(Backbone):
    """Four groups of basic blocks (He et al. 2016), then global average pooling.

    Args:
        in_channels: number of image channels.
        blocks: number of blocks in each group.
        embedding: width of a linear layer after the non-negative features; None for no such layer.
        widths: channels of each group. The stem has as many as the first group.
        strides: strides of the stem and of each group.
    """

    def __init__(
        self,
        in_channels: int,
        blocks: tuple[int, int, int, int],
        *,
        embedding: int | None = None,
        widths: tuple[int, int, int, int] = (64, 128, 256, 512),
        strides: tuple[int, int, int, int, int] = (1, 1, 2, 2, 2),
    ) -> None:
        super().__init__(widths[-1], nonnegative=True, embedding=embedding)
        first = widths[0]
        self.stem = nn.Sequential(
            _conv3x3(in_channels, first, strides[0]), nn.BatchNorm2d(first), nn.ReLU(inplace=True)
        )
        self.groups = nn.Sequential(*map(_group, (first, *widths[:-1]), widths, blocks, strides[1:]))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Images) -> Embeddings:
        return self.groups(self.stem(images)).mean((2, 3))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut, which is a 1 x 1 convolution if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _conv3x3(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            _conv3x3(outputs, outputs, 1),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.residual(x) + self.shortcut(x), inplace=True)


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def _group(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)))
