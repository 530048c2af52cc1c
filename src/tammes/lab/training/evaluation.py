"""Evaluate a classifier on held-out images."""

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tammes.geometry.margins import sample_margins
from tammes.geometry.sphere import normalize
from tammes.lab.data import Batches
from tammes.lab.models import embed
from tammes.lab.training.classifier import Classifier
from tammes.lab.training.distributed import ALONE, World
from tammes.metrics._example_samples import some_samples
from tammes.metrics.classification import Evaluation, own_similarities, summarize
from tammes.metrics.shot_groups import imbalanced

__all__ = ["Evaluation", "embeddings_of", "evaluate"]

PER_SAMPLE_ARRAYS = ("label", "prediction", "sample_margin", "similarity", "confidence")
"""Arrays of an evaluation. The last one is present only if the training classes are imbalanced."""


@torch.no_grad()
def evaluate(
    classifier: Classifier,
    batches: Batches,
    *,
    flip: bool = False,
    autocast: str = "none",
    world: World = ALONE,
) -> Evaluation:
    """Evaluate `classifier` on `batches`, in evaluation mode; restore its mode afterwards.

    Args:
        classifier: the classifier, with all prototypes on every rank.
        batches: batches in order, without augmentation, sharded over the ranks.
        flip: average the embeddings of each image and its mirror image.
        autocast: precision of the backbone: "none" (float32), "bf16" or "fp16".
        world: the process group.
    """
    was_training = classifier.training
    classifier.eval()
    shown = torch.from_numpy(some_samples(batches.size)).to(batches.device)
    try:
        parts = [
            _measure(
                classifier,
                embed(classifier.backbone, images, flip=flip, autocast=autocast),
                labels,
                indices,
                shown,
            )
            for images, labels, indices in batches.epoch(0, rank=world.rank, world_size=world.size)
            if len(labels)
        ]
    finally:
        classifier.train(was_training)
    gathered = [part for parts in world.gather(parts) for part in parts]
    indices, *columns, places, embedding = (np.concatenate(c) for c in zip(*gathered, strict=True))
    order, shown_order = np.argsort(indices), np.argsort(places)
    samples = {name: column[order] for name, column in zip(PER_SAMPLE_ARRAYS, columns, strict=False)}
    samples["index"] = indices[order]
    # Unreadable files are missing from the columns, so positions are recomputed.
    samples["shown"] = np.searchsorted(indices[order], places[shown_order])
    samples["embedding"] = embedding[shown_order]
    if "confidence" in samples:
        samples["class_count"] = np.array(classifier.class_counts)
    return summarize(classifier.head.weight, samples, nonnegative=classifier.backbone.nonnegative)


@torch.no_grad()
def embeddings_of(
    classifier: Classifier,
    batches: Batches,
    *,
    flip: bool = False,
    autocast: str = "none",
    world: World = ALONE,
) -> tuple[Int64[Tensor, " n"], Float[Tensor, "n d"]]:
    """Indices of the readable images of `batches`, ascending, and their embeddings, on the CPU.

    The arguments are those of `evaluate`. Every rank gets all embeddings.
    """
    was_training = classifier.training
    classifier.eval()
    try:
        parts = [
            (indices.cpu(), embed(classifier.backbone, images, flip=flip, autocast=autocast).float().cpu())
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
    classifier: Classifier, embeddings: Tensor, labels: Tensor, indices: Tensor, shown: Tensor
) -> tuple[np.ndarray, ...]:
    """Indices and `PER_SAMPLE_ARRAYS` of one batch; indices and unit embeddings of the samples `shown`."""
    head = classifier.head
    margins = sample_margins(embeddings, head.weight, labels)
    similarity = own_similarities(embeddings, head.weight, labels)
    kept = torch.isin(indices, shown)
    units = normalize(embeddings[kept]).half()
    found = [indices, labels, classifier.predict(embeddings), margins, similarity]
    if imbalanced(classifier.class_counts):
        found.append(classifier.logits(embeddings).softmax(1).amax(1))
    return tuple(column.cpu().numpy() for column in (*found, indices[kept], units))
