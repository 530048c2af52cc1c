"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 as torchvision stores them."""

from pathlib import Path
from typing import Any

import torch

from tammes.lab.data.augmentation import Augmentation
from tammes.lab.data.dataset import DataSet, InMemory, in_memory

CLASSES = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}


def torchvision_set(
    name: str,
    root: Path,
    download: bool,
    augmentation: Augmentation,
    size: tuple[int, int] | None = None,
) -> DataSet:
    """Load the data set `name` (a key of `CLASSES`) from `root`, downloading it first with `download`.

    Torchvision unpickles CIFAR's files, but only those whose checksums it knows.
    """
    import torchvision

    make = getattr(torchvision.datasets, CLASSES[name])
    try:
        train, test = (make(root, train=training, download=download) for training in (True, False))
    except OSError as error:
        raise OSError(f"{name} could not be downloaded to {root}: {error}") from error
    except Exception as error:  # torchvision's reader of damaged files raises nearly anything
        reason = str(error) or "a file is damaged."
        fetch = "" if download else ", or allow the download (download=True, --download)"
        raise FileNotFoundError(
            f"{name} is not complete in {root}: {reason} Pass the root that contains it or {name}.npz{fetch}."
        ) from error
    classes = tuple(c.split(" - ")[0] for c in train.classes)  # MNIST says "0 - zero"
    return in_memory(name, _split(train), _split(test), classes, augmentation, size)


def _split(stored: Any) -> InMemory:
    pixels = torch.as_tensor(stored.data)
    images = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
    return InMemory(images, torch.as_tensor(stored.targets, dtype=torch.int64))
