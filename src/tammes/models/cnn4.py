"""The paper's network for MNIST."""

from torch import nn

from tammes.models.backbone import Backbone, Images
from tammes.types import Embeddings


class CNN4(Backbone):
    """Conv(c, 32, 3), BatchNorm, ReLU, MaxPool(2), Conv(32, 64, 3), BatchNorm, ReLU, MaxPool(2), Linear().

    The paper (appendix, training details) prints it so, without padding, and calls it a 4-layer CNN; it
    does not say whether `Linear()` is a layer of its own or holds the prototypes. Three readings:

    * `hidden=128`: `Linear()` is a layer of 128 features with BatchNorm and ReLU, as in the first author's
      other published networks for MNIST, and the prototypes are the fourth layer;
    * neither: `Linear()` is the prototype layer, so the head sees the flattened feature maps, 1,600 for
      28 x 28 images;
    * `embedding=d`: `Linear()` maps to d dimensions, and nothing comes between it and the prototypes.

    Features are non-negative in the first two.
    """

    def __init__(
        self,
        in_channels: int,
        image_size: tuple[int, int],
        *,
        hidden: int | None = None,
        embedding: int | None = None,
    ) -> None:
        height, width = ((side - 2) // 2 // 2 - 1 for side in image_size)
        flat = 64 * height * width
        super().__init__(hidden or flat, nonnegative=True, embedding=embedding)
        stages = (*_stage(in_channels, 32), *_stage(32, 64), nn.Flatten())
        layer = (nn.Linear(flat, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)) if hidden else ()
        self.stages = nn.Sequential(*stages, *layer)

    def features(self, images: Images) -> Embeddings:
        return self.stages(images)


def _stage(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    # Maximum and ReLU commute, so pooling first is the same function with a quarter of the ReLU's work.
    return nn.Conv2d(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.MaxPool2d(2), nn.ReLU(inplace=True)
