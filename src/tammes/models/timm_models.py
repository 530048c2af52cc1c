"""Any network of timm, by name."""

from typing import Any

import torch

from tammes.checks import nearest
from tammes.models.backbone import Backbone, Images
from tammes.types import Embeddings


class Timm(Backbone):
    """The network that timm calls `name`, untrained and without its classifier.

    Whether its features are non-negative is found by trying it on noise.
    """

    def __init__(
        self, name: str, in_channels: int, image_size: tuple[int, int], *, embedding: int | None = None
    ) -> None:
        import timm

        if not timm.is_model(name):
            raise ValueError(f"timm has no model {name!r}. {nearest(name, timm.list_models())}")
        # Only nets with position embeddings know, and must know, the size of their images.
        known = timm.get_pretrained_cfg(name)
        size: dict[str, Any] = {"img_size": image_size} if known and known.fixed_input_size else {}
        net = timm.create_model(name, pretrained=False, num_classes=0, in_chans=in_channels, **size)
        features = _try(net, name, (in_channels, *image_size))
        super().__init__(features.shape[1], nonnegative=bool((features >= 0).all()), embedding=embedding)
        self.net = net

    def features(self, images: Images) -> Embeddings:
        return self.net(images)


@torch.no_grad()
def _try(net: torch.nn.Module, name: str, shape: tuple[int, int, int]) -> Embeddings:
    """Features of two noise images."""
    noise = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    net.eval()
    try:
        return net(noise)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"timm/{name} does not take images of shape {shape}: {error} Choose another image_size."
        ) from error
    finally:
        net.train()
