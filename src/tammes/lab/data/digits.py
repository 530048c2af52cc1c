"""The 1,797 handwritten 8 x 8 digits that ship with scikit-learn."""

import numpy as np
import torch

from tammes.lab.data.augmentation import Augmentation
from tammes.lab.data.dataset import DataSet, InMemory, in_memory, stratified


def digits(size: tuple[int, int] | None = None) -> DataSet:
    """Load scikit-learn's digits, rescaled from 0..16 to bytes. A fixed fifth of each class is test data."""
    from sklearn.datasets import load_digits

    grey, target = load_digits(return_X_y=True)
    images = np.round(grey * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    whole = InMemory(torch.from_numpy(images), torch.from_numpy(target).long())
    train, test = map(whole.select, stratified(whole.labels))
    return in_memory("digits", train, test, tuple("0123456789"), Augmentation(shift=1), size)
