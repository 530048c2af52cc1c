"""Images with labels: named sets, `.npz` files and folders, as normalised batches.

>>> dataset = load("digits")
>>> dataset.shape, len(dataset.train), len(dataset.classes)
((1, 8, 8), 1438, 10)
>>> for images, labels, indices in Batches(dataset, "train", batch_size=64, training=True).epoch(0):
...     break
"""

from tammes.data.augmentation import Augmentation
from tammes.data.batches import Batch, Batches
from tammes.data.catalogue import NAMES, load
from tammes.data.dataset import DataSet, InMemory, OnDisk, Split, hold_out, stratified
from tammes.data.identities import IdentitySet
from tammes.data.images import read_image
from tammes.data.imbalance import imbalance
from tammes.data.pixels import normalise

__all__ = [
    "NAMES",
    "Augmentation",
    "Batch",
    "Batches",
    "DataSet",
    "IdentitySet",
    "InMemory",
    "OnDisk",
    "Split",
    "hold_out",
    "imbalance",
    "load",
    "normalise",
    "read_image",
    "stratified",
]
