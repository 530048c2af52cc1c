"""The paper's network for MNIST."""

from torch import nn

from tammes.models.backbone import Backbone, Images
from tammes.types import Embeddings


class CNN4(Backbone):
    """Conv(c, 32, 3), BatchNorm, ReLU, MaxPool(2), Conv(32, 64, 3), BatchNorm, ReLU, MaxPool(2), Linear().

    The paper (appendix, training details) prints it so, without padding, and calls it a 4-layer CNN; it
    does not say whether `Linear()` is the embedding or holds the prototypes. Both are offered:

    * `embedding=None`: `Linear()` is the prototype layer, so the head sees the flattened feature maps (1,600
      for 28 x 28 images), which are non-negative;
    * `embedding=d`: `Linear()` maps to d dimensions and the prototypes are the fourth layer.
    """

    def __init__(
        self, in_channels: int, image_size: tuple[int, int], *, embedding: int | None = None
    ) -> None:
        height, width = ((side - 2) // 2 // 2 - 1 for side in image_size)
        super().__init__(64 * height * width, nonnegative=True, embedding=embedding)
        self.stages = nn.Sequential(*_stage(in_channels, 32), *_stage(32, 64))

    def features(self, images: Images) -> Embeddings:
        return self.stages(images).flatten(1)


def _stage(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    # Maximum and ReLU commute, so pooling first is the same function with a quarter of the ReLU's work.
    return nn.Conv2d(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.MaxPool2d(2), nn.ReLU(inplace=True)
