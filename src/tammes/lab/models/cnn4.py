"""The paper's network for MNIST."""

from torch import nn

from tammes._common.types import Embeddings
from tammes.lab.models.backbone import Backbone, Images


class CNN4(Backbone):
    """Conv(c, 32, 3), BatchNorm, ReLU, MaxPool(2), Conv(32, 64, 3), BatchNorm, ReLU, MaxPool(2), Linear().

    The paper (appendix, training details) gives this architecture, without padding, and calls it a 4-layer
    CNN. It does not say whether `Linear()` is a separate layer or holds the prototypes. Three readings:

    * `hidden=128`: `Linear()` is a layer of 128 features with BatchNorm and ReLU, as in the first author's
      other published networks for MNIST, and the prototypes are the fourth layer;
    * neither: `Linear()` is the prototype layer, so the head sees the flattened feature maps, 1,600 for
      28 x 28 images;
    * `embedding=d`: `Linear()` maps to d dimensions, directly followed by the prototypes.

    Features are non-negative in the first two. `padded=True` pads the convolutions by 1 and initializes them
    Kaiming-uniform and linear layers Xavier-uniform, as in public code with the authors' losses.
    """

    def __init__(
        self,
        in_channels: int,
        image_size: tuple[int, int],
        *,
        hidden: int | None = None,
        padded: bool = False,
        embedding: int | None = None,
    ) -> None:
        height, width = (side // 4 if padded else (side - 2) // 2 // 2 - 1 for side in image_size)
        flat = 64 * height * width
        super().__init__(hidden or flat, nonnegative=True, embedding=embedding)
        padding = 1 if padded else 0
        stages = (*_stage(in_channels, 32, padding), *_stage(32, 64, padding), nn.Flatten())
        layer = (nn.Linear(flat, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)) if hidden else ()
        self.stages = nn.Sequential(*stages, *layer)
        if padded:
            self.apply(_start)

    def features(self, images: Images) -> Embeddings:
        return self.stages(images)


def _stage(inputs: int, outputs: int, padding: int) -> tuple[nn.Module, ...]:
    # Max pooling and ReLU commute, so pooling first gives the same result with a quarter of the ReLU's work.
    convolution = nn.Conv2d(inputs, outputs, 3, padding=padding)
    return convolution, nn.BatchNorm2d(outputs), nn.MaxPool2d(2), nn.ReLU(inplace=True)


def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
