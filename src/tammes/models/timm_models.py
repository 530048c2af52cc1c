"""Any network of timm, by name."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tammes.checks import nearest
from tammes.models.backbone import Backbone, Images
from tammes.types import Embeddings


class Timm(Backbone):
    """The network that timm calls `name`, without its classifier.

    Whether its features are non-negative is found by trying it on noise.

    Args:
        name: as timm lists it.
        in_channels, image_size: of the images.
        embedding: width of a linear layer behind the features; None for none.
        last_stride: 1 takes the stride out of the last stage of a ResNet.
        pretrained: None for random weights, a `.safetensors` file, or "timm" to fetch those it publishes.
    """

    def __init__(
        self,
        name: str,
        in_channels: int,
        image_size: tuple[int, int],
        *,
        embedding: int | None = None,
        last_stride: int = 2,
        pretrained: str | None = None,
    ) -> None:
        import timm

        if not timm.is_model(name):
            raise ValueError(f"timm has no model {name!r}. {nearest(name, timm.list_models())}")
        # Only nets with position embeddings know, and must know, the size of their images.
        known = timm.get_pretrained_cfg(name)
        size: dict[str, Any] = {"img_size": image_size} if known and known.fixed_input_size else {}
        net = timm.create_model(name, num_classes=0, in_chans=in_channels, **_start(name, pretrained), **size)
        if last_stride == 1:
            _keep_resolution(net, name)
        features = _try(net, name, (in_channels, *image_size))
        super().__init__(features.shape[1], nonnegative=bool((features >= 0).all()), embedding=embedding)
        self.net = net

    def features(self, images: Images) -> Embeddings:
        return self.net(images)


def _start(name: str, pretrained: str | None) -> dict[str, Any]:
    """timm's options for the weights to start from."""
    if pretrained is None:
        return {"pretrained": False}
    if pretrained == "timm":
        return {"pretrained": True}
    path = Path(pretrained)
    if path.suffix != ".safetensors" or not path.is_file():
        raise ValueError(
            f"pretrained must be a .safetensors file of timm/{name}'s weights, or 'timm', got {pretrained!r}."
        )
    return {"pretrained": True, "pretrained_cfg_overlay": {"file": str(path)}}


def _keep_resolution(net: Any, name: str) -> None:
    """Take the stride out of the last stage of a ResNet; its weights fit as before."""
    if not hasattr(net, "layer4"):
        raise ValueError(f"last_stride=1 needs a ResNet of timm, got timm/{name}. Leave it out.")
    for module in net.layer4.modules():
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)


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
