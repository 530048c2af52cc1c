"""Embed images: the single path from pixels to vectors, for every task and command."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, UInt8

from tammes._common.types import Embeddings
from tammes.geometry.sphere import normalize
from tammes.lab.data import standardize
from tammes.lab.models import Backbone, embed
from tammes.lab.training.classifier import DataFacts
from tammes.lab.training.distributed import ALONE, World

EMBED_BATCH = 128

Embedded = Float32[np.ndarray, "n d"]
Pictures = UInt8[np.ndarray, "n h w c"]


@dataclass(frozen=True, eq=False)
class Embedder:
    """A backbone with the preprocessing it was trained with.

    Args:
        backbone: the network, in evaluation mode.
        facts: size, channels, mean and standard deviation of its images.
        flip: average the embeddings of each image and its mirror image.
        world: the process group over which `of` shards its work.
    """

    backbone: Backbone
    facts: DataFacts
    flip: bool = True
    world: World = ALONE

    @torch.no_grad()
    def embeddings(self, pictures: Pictures) -> Embeddings:
        """Embeddings of decoded images, as input to the prototypes."""
        device = self.world.device
        pixels = torch.from_numpy(pictures).to(device).permute(0, 3, 1, 2)
        mean, std = (torch.tensor(values, device=device) for values in (self.facts.mean, self.facts.std))
        return embed(self.backbone, standardize(pixels, mean, std), flip=self.flip)

    def __call__(self, pictures: Pictures) -> Embedded:
        """Embed decoded images as unit vectors, in batches."""
        parts = [np.empty((0, self.backbone.out_features), np.float32)]
        for start in range(0, len(pictures), EMBED_BATCH):
            vectors = self.embeddings(pictures[start : start + EMBED_BATCH])
            parts.append(normalize(vectors.float()).cpu().numpy())
        return np.concatenate(parts)

    def of(self, read: Callable[[int], UInt8[np.ndarray, "h w c"]], names: Sequence[str]) -> Embedded:
        """Unit embeddings of the images that `read` returns, one per name. Ranks share the work."""
        share = np.array_split(np.arange(len(names)), self.world.size)[self.world.rank].tolist()
        parts = [np.empty((0, self.backbone.out_features), np.float32)]
        with ThreadPoolExecutor() as pool:
            for start in range(0, len(share), EMBED_BATCH):
                parts.append(self(np.stack(list(pool.map(read, share[start : start + EMBED_BATCH])))))
        return np.concatenate(self.world.gather(np.concatenate(parts)))
