"""The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn."""

import numpy as np
import torch

from tammes.data.augmentation import Augmentation
from tammes.data.dataset import DataSet, InMemory, in_memory, stratified


def digits(size: tuple[int, int] | None = None) -> DataSet:
    """Scikit-learn's digits, 0 to 16 scaled to bytes; a fixed fifth of every class is for testing."""
    from sklearn.datasets import load_digits

    grey, target = load_digits(return_X_y=True)
    images = np.round(grey * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    whole = InMemory(torch.from_numpy(images), torch.from_numpy(target).long())
    train, test = map(whole.select, stratified(whole.labels))
    return in_memory("digits", train, test, tuple("0123456789"), Augmentation(shift=1), size)
