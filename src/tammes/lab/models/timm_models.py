"""Any timm model, by name."""

import threading
import urllib.error
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tammes._common.checks import did_you_mean, reading
from tammes._common.types import Embeddings
from tammes.lab.models.backbone import Backbone, Images
from tammes.lab.models.packaged_weights import (
    HOW_TO_INSTALL,
    PACKAGED_MODEL,
    packaged_weights,
    weights_installed,
)

HUB_SECONDS = 2.5
"""Maximum time in seconds to wait for a response of the hub."""


class Input(NamedTuple):
    """Images that a network was pretrained on: side in pixels and channel statistics."""

    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def expected_input(name: str) -> Input:
    """The images that the published weights of the timm model `name` were trained on."""
    import timm

    known = timm.get_pretrained_cfg(check_name(name))
    if known is None:
        raise ValueError(f"timm has no published weights of {name}. Leave --pretrained out.")
    return Input(known.input_size[-1], tuple(known.mean), tuple(known.std))


def check_name(name: str) -> str:
    """Return `name` if timm has such a model; raise with the nearest name if it does not."""
    import timm

    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}. {did_you_mean(name, timm.list_models())}")
    return name


class Timm(Backbone):
    """The timm model `name` without its classifier.

    Whether its features are non-negative is determined by a forward pass on noise.

    Args:
        name: timm's model name.
        in_channels, image_size: channels and size of the images.
        embedding: width of a linear layer after the features; None for no such layer.
        last_stride: 1 removes the stride of the last stage of a ResNet.
        pretrained: None for random weights, a `.safetensors` file, "timm" to download the published ones, or
            "package" for those that `tammes[weights]` installs.
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

        check_weights(name, pretrained)
        # Only models with position embeddings accept, and require, the image size.
        known = timm.get_pretrained_cfg(name)
        size: dict[str, Any] = {"img_size": image_size} if known and known.fixed_input_size else {}
        start = _start(pretrained)
        own = "pretrained_cfg_overlay" in start
        with reading(str(pretrained), f"Expected weights of timm/{name}.") if own else nullcontext():
            net = timm.create_model(name, num_classes=0, in_chans=in_channels, **start, **size)
        if pretrained == "package" and not next(net.parameters()).is_meta:
            net.load_state_dict(packaged_weights(net.state_dict()))
        if last_stride == 1:
            _keep_resolution(net, name)
        features = _try(net, name, (in_channels, *image_size))
        nonnegative = not features.is_meta and bool((features >= 0).all())
        super().__init__(features.shape[1], nonnegative=nonnegative, embedding=embedding)
        self.net = net

    def features(self, images: Images) -> Embeddings:
        return self.net(images)


def check_weights(name: str, pretrained: str | None) -> None:
    """Check that timm has the model `name` and that its weights are available, without building it."""
    if (name, pretrained) == (PACKAGED_MODEL, "timm") and not _some_version_cached(name):
        _check_hub(name)  # without timm, whose import takes seconds
        return
    check_name(name)
    if pretrained == "package" and name != PACKAGED_MODEL:
        raise ValueError(
            f"The installed weights are those of timm/{PACKAGED_MODEL}, not of timm/{name}. Use --pretrained "
            "to download."
        )
    if pretrained == "package" and not weights_installed():
        raise ValueError(f"The package of weights is not installed. Install it: {HOW_TO_INSTALL}")
    if pretrained == "timm":
        _check_reachable(name)
    elif pretrained not in (None, "package"):
        path = Path(str(pretrained))
        if path.suffix != ".safetensors" or not path.is_file():
            raise ValueError(
                f"pretrained must be a .safetensors file of timm/{name}'s weights, or 'timm' to download the "
                f"published ones, got {pretrained!r}."
            )


def _check_reachable(name: str) -> None:
    """Check that the weights are cached or the hub responds."""
    import timm
    from huggingface_hub import try_to_load_from_cache

    known = timm.get_pretrained_cfg(name)
    if known is None:
        raise ValueError(f"timm has no published weights of {name}. Leave --pretrained out.")
    files = ("model.safetensors", "pytorch_model.bin")
    if known.hf_hub_id and any(isinstance(try_to_load_from_cache(known.hf_hub_id, f), str) for f in files):
        return
    _check_hub(name)


def _some_version_cached(name: str) -> bool:
    """Whether weights of timm's model `name` have been downloaded, perhaps not those that it takes now."""
    from huggingface_hub import constants

    return any(Path(constants.HF_HUB_CACHE).glob(f"models--timm--{name}.*"))


def _check_hub(name: str) -> None:
    """Check that the hub responds, because timm itself retries for a minute."""
    from huggingface_hub import constants

    failure = _failure_to_open(constants.ENDPOINT)
    if failure is not None:
        raise ValueError(
            f"The weights of timm/{name} cannot be downloaded ({failure}). Connect to the network, or "
            f"install those of {PACKAGED_MODEL}, which need none: {HOW_TO_INSTALL}"
        )


def _failure_to_open(address: str) -> str | None:
    """Why `address` does not respond within `HUB_SECONDS`; None if it does.

    In a thread, because the timeout of a connection does not limit the search for its name.
    """
    failure: list[str | None] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(address, method="HEAD")
            urllib.request.urlopen(request, timeout=HUB_SECONDS)
        except urllib.error.HTTPError:
            failure.append(None)  # it responds
        except OSError as error:
            failure.append(str(getattr(error, "reason", error)))
        else:
            failure.append(None)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(HUB_SECONDS)
    return failure[0] if failure else f"no response within {HUB_SECONDS:g} s"


def _start(pretrained: str | None) -> dict[str, Any]:
    """timm's options for the initial weights."""
    if pretrained in (None, "package"):
        return {"pretrained": False}
    if pretrained == "timm":
        return {"pretrained": True}
    return {"pretrained": True, "pretrained_cfg_overlay": {"file": str(pretrained)}}


def _keep_resolution(net: Any, name: str) -> None:
    """Remove the stride of the last stage of a ResNet. Its weights still fit."""
    if not hasattr(net, "layer4"):
        raise ValueError(f"last_stride=1 needs a timm ResNet, got timm/{name}. Leave it out.")
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
            f"timm/{name} does not accept images of shape {shape}: {error} Choose another image_size."
        ) from error
    finally:
        net.train()
