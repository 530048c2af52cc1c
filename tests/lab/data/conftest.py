"""Small made data sets and folders of images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tammes.lab.data import Augmentation, DataSet, InMemory
from tammes.lab.data.dataset import in_memory


@pytest.fixture
def made() -> DataSet:
    """37 training and 11 test images of 3 x 9 x 7 random bytes in 3 classes."""
    rng = np.random.default_rng(0)

    def split(n: int) -> InMemory:
        images = rng.integers(0, 256, (n, 3, 9, 7), dtype=np.uint8)
        return InMemory(torch.from_numpy(images), torch.arange(n) % 3)

    return in_memory("made", split(37), split(11), ("a", "b", "c"), Augmentation(shift=2, flip=True))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of class/xxx.png: 10 cats, 7 dogs and 1 emu, 12 x 8 pixels."""
    rng = np.random.default_rng(1)
    for name, count in (("cat", 10), ("dog", 7), ("emu", 1)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (12, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i:03d}.png")
    return tmp_path / "photos"
