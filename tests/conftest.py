"""What tests of several rooms train on."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory) -> Callable[[int], Path]:
    """Makes a data root whose mnist.npz has n images to train on and 20 to test on: bright lines in noise."""

    def make(n: int) -> Path:
        folder, rng = tmp_path_factory.mktemp("root"), np.random.default_rng(0)
        arrays = {}
        for split, size in (("train", n), ("test", 20)):
            labels = np.arange(size) % 10
            images = rng.integers(0, 80, (size, 28, 28))
            images[np.arange(size), 2 * labels] = 250
            arrays |= {f"x_{split}": images.astype(np.uint8), f"y_{split}": labels}
        np.savez(folder / "mnist.npz", **arrays)
        return folder

    return make
