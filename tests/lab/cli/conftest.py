"""A trained run and a folder of photos."""

import numpy as np
import pytest
from PIL import Image

from tammes.lab.cli import main


def picture(kind: int, rng: np.random.Generator) -> Image.Image:
    """A noisy patch of red, green or blue, 12 x 14 pixels."""
    pixels = rng.integers(0, 90, (12, 14, 3))
    pixels[..., kind] += 140
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Three classes of 15 images: red, green, blue."""
    folder, rng = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for kind, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for i in range(15):
            picture(kind, rng).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="session")
def run(photos, tmp_path_factory):
    """A run trained on the photos through the command line."""
    out = tmp_path_factory.mktemp("runs") / "photos"
    words = ["train", str(photos), "--model", "cnn4", "--epochs", "6", "--batch-size", "9", "--out", str(out)]
    assert main(words) == 0
    return out
