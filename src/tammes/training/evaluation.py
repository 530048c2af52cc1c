"""One pass of a classifier over images it has not learned from."""

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tammes.data import Batches
from tammes.geometry.margins import sample_margins
from tammes.geometry.sphere import normalize
from tammes.metrics.by_count import skewed
from tammes.metrics.classification import Evaluation, own_similarities, some_samples, summarise
from tammes.models import embed
from tammes.training.classifier import Classifier
from tammes.training.distributed import ALONE, World

__all__ = ["Evaluation", "embeddings_of", "evaluate"]

COLUMNS = ("label", "prediction", "sample_margin", "similarity", "confidence")
"""Arrays of an evaluation; the last one only where the training classes are skewed."""


@torch.no_grad()
def evaluate(
    classifier: Classifier, batches: Batches, *, flip: bool = False, world: World = ALONE
) -> Evaluation:
    """One pass of `classifier`, switched to evaluation and back, over `batches`, which ranks share.

    Args:
        classifier: with all prototypes on every rank.
        batches: in order, not augmented.
        flip: take the mean embedding of each image and its mirror image.
        world: the processes that share the work.
    """
    was_training = classifier.training
    classifier.eval()
    shown = torch.from_numpy(some_samples(batches.size)).to(batches.device)
    try:
        parts = [
            _measure(classifier, images, labels, indices, flip, shown)
            for images, labels, indices in batches.epoch(0, rank=world.rank, world_size=world.size)
            if len(labels)
        ]
    finally:
        classifier.train(was_training)
    gathered = [part for parts in world.gather(parts) for part in parts]
    indices, *columns, places, embedding = (np.concatenate(c) for c in zip(*gathered, strict=True))
    order, shown_order = np.argsort(indices), np.argsort(places)
    samples = {name: column[order] for name, column in zip(COLUMNS, columns, strict=False)}
    # Files that could not be read are missing from the columns, so places are counted anew.
    samples["shown"] = np.searchsorted(indices[order], places[shown_order])
    samples["embedding"] = embedding[shown_order]
    if "confidence" in samples:
        samples["class_count"] = np.array(classifier.class_counts)
    return summarise(classifier.head.weight, samples, nonnegative=classifier.backbone.nonnegative)


@torch.no_grad()
def embeddings_of(
    classifier: Classifier, batches: Batches, *, flip: bool = False, world: World = ALONE
) -> tuple[Int64[Tensor, " n"], Float[Tensor, "n d"]]:
    """The indices of the images of `batches` that could be read, ascending, and their embeddings; on the CPU.

    As in `evaluate`; every rank gets them all.
    """
    was_training = classifier.training
    classifier.eval()
    try:
        parts = [
            (indices.cpu(), embed(classifier.backbone, images, flip=flip).float().cpu())
            for images, _, indices in batches.epoch(0, rank=world.rank, world_size=world.size)
            if len(indices)
        ]
    finally:
        classifier.train(was_training)
    gathered = [part for parts in world.gather(parts) for part in parts]
    indices, embeddings = (torch.cat(column) for column in zip(*gathered, strict=True))
    order = indices.argsort()
    return indices[order], embeddings[order]


def _measure(
    classifier: Classifier, images: Tensor, labels: Tensor, indices: Tensor, flip: bool, shown: Tensor
) -> tuple[np.ndarray, ...]:
    """Indices and `COLUMNS` of one batch, then indices and unit embeddings of the samples `shown`."""
    head, embeddings = classifier.head, embed(classifier.backbone, images, flip=flip)
    margins = sample_margins(embeddings, head.weight, labels)
    similarity = own_similarities(embeddings, head.weight, labels)
    kept = torch.isin(indices, shown)
    units = normalize(embeddings[kept]).half()
    found = [indices, labels, classifier.predict(embeddings), margins, similarity]
    if skewed(classifier.class_counts):
        found.append(classifier.logits(embeddings).softmax(1).amax(1))
    return tuple(column.cpu().numpy() for column in (*found, indices[kept], units))
