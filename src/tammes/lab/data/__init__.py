"""Labeled images from named data sets, `.npz` files and folders, as standardized batches.

>>> from tammes.lab.data import Batches, load
>>> dataset = load("digits")
>>> dataset.shape, len(dataset.train), len(dataset.classes)
((1, 8, 8), 1438, 10)
>>> for images, labels, indices in Batches(dataset, "train", batch_size=64, training=True).epoch(0):
...     break
"""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
