"""`Predictor`: decode, embed and classify images with the network of a trained run."""

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np
import torch

from tammes._common import checks
from tammes._common.types import Picture
from tammes.lab.data import read_image
from tammes.lab.data.augmentation import Box, center_box
from tammes.lab.training.embedder import EMBED_BATCH, Embedded, Embedder, Pictures
from tammes.lab.training.run_folder import RunFolder, Which


class Prediction(NamedTuple):
    """The most likely classes of an image with their probabilities, or the reason it is unreadable."""

    path: str
    classes: list[tuple[str, float]]
    error: str | None = None


class Predictor:
    """The network of a run with the preprocessing of its training.

    Args:
        folder: the run.
        which: the weights of the last checkpoint, or the best ones.
    """

    def __init__(self, folder: RunFolder, which: Which = "last") -> None:
        self.facts, self.classifier = folder.facts, folder.classifier(which)
        self.embedder = Embedder(self.classifier.backbone, self.facts, folder.config.test_flip)

    def read(self, path: str | BytesIO, box: Callable[[int, int, float], Box] = center_box) -> Picture:
        """Decode an image file at the size and with the channels of the network's input."""
        channels, height, width = self.facts.shape
        return read_image(path, (height, width), channels, box)

    def try_read(
        self, path: str, box: Callable[[int, int, float], Box] = center_box
    ) -> tuple[Picture | None, str]:
        """The decoded image, or None and the reason if it is unreadable."""
        try:
            return self.read(path, box), ""
        except Exception as error:  # decoders raise many kinds of errors on broken files
            return None, f"{type(error).__name__}: {error}"

    def embed(self, pictures: Pictures) -> Embedded:
        """Embed decoded images as unit vectors."""
        return self.embedder(pictures)

    @torch.no_grad()
    def classify(self, pictures: Pictures, top: int = 1) -> list[list[tuple[str, float]]]:
        """The `top` most likely classes of each decoded image, by the softmax of the logits."""
        logits = self.classifier.logits(self.embedder.embeddings(pictures))
        values, places = logits.softmax(1).topk(top)
        rows = zip(places.tolist(), values.tolist(), strict=True)
        return [
            [(self.facts.classes[place], share) for place, share in zip(*row, strict=True)] for row in rows
        ]

    def predict(self, paths: Sequence[str], *, top: int = 1) -> Iterator[Prediction]:
        """The `top` most likely classes of each image file, in the order of `paths`."""
        checks.at_least("top", top, 1)
        if top > len(self.facts.classes):
            raise ValueError(
                f"top must be at most {len(self.facts.classes)}, the number of classes, got {top}."
            )
        for start in range(0, len(paths), EMBED_BATCH):
            some = paths[start : start + EMBED_BATCH]
            read = [self.try_read(path) for path in some]
            pictures = [picture for picture, _ in read if picture is not None]
            found = iter(self.classify(np.stack(pictures), top) if pictures else [])
            for path, (picture, reason) in zip(some, read, strict=True):
                yield Prediction(path, [], reason) if picture is None else Prediction(path, next(found))
