"""Evaluate a network on held-out images, by the protocol of the kind of data set."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tammes.geometry.margins import sample_margins
from tammes.geometry.sphere import normalize
from tammes.lab.data import Batches, DataSet, IdentitySet
from tammes.lab.data.face_sets import FaceSet
from tammes.lab.data.identities import pictures
from tammes.lab.models import embed
from tammes.lab.training.classifier import Classifier
from tammes.lab.training.distributed import ALONE, World
from tammes.lab.training.face_evaluation import with_verification
from tammes.metrics._example_samples import some_samples
from tammes.metrics.classification import Evaluation, own_similarities, summarize
from tammes.metrics.open_set import OpenSetEvaluation
from tammes.metrics.reranking import k_reciprocal_distances
from tammes.metrics.retrieval import (
    Metric,
    Retrieval,
    Shots,
    nearest,
    retrieval_metrics,
    retrieval_metrics_of_scores,
)
from tammes.metrics.shot_groups import imbalanced

Measured = Evaluation | OpenSetEvaluation
"""Result of a protocol: `headline` and `score` to report, `numbers()` for records, `arrays` to save."""

PER_SAMPLE_ARRAYS = ("label", "prediction", "sample_margin", "similarity", "confidence")
"""Arrays of an evaluation. The last one is present only if the training classes are imbalanced."""

SHOWN_LISTS = 4
"""Number of best, and of worst, rankings to keep with their images."""


@dataclass(frozen=True, eq=False)
class Protocol(ABC):
    """Evaluation of a network on the test images of `dataset`.

    Args:
        dataset: provides the test images.
        batches: batches of those images, in order, without augmentation.
        flip: average the embeddings of each image and its mirror image.
        autocast: precision of the backbone, as in training.
    """

    dataset: DataSet
    batches: Batches
    flip: bool = False
    autocast: str = "none"

    @abstractmethod
    def measure(self, classifier: Classifier, world: World = ALONE) -> Measured:
        """Evaluate on the test images, sharded over the ranks of `world`."""


class Classification(Protocol):
    """Accuracy and margins on test images of the training classes."""

    def measure(self, classifier: Classifier, world: World = ALONE) -> Evaluation:
        return evaluate(classifier, self.batches, flip=self.flip, autocast=self.autocast, world=world)


class Faces(Classification):
    """Accuracy and margins on held-out images of the training identities, and verification of others."""

    def measure(self, classifier: Classifier, world: World = ALONE) -> Evaluation:
        assert isinstance(self.dataset, FaceSet)
        held_out = super().measure(classifier, world)
        return with_verification(held_out, classifier, self.dataset, flip=self.flip, world=world)


@dataclass(frozen=True, eq=False)
class ReIdentification(Protocol):
    """Retrieval of unseen people across cameras: mAP, CMC, mINP.

    Args:
        metric: metric of the embeddings, as input to the prototypes.
        rerank: re-rank by k-reciprocal neighbors.
    """

    metric: Metric = "cosine"
    rerank: bool = False

    def measure(self, classifier: Classifier, world: World = ALONE) -> OpenSetEvaluation:
        assert isinstance(self.dataset, IdentitySet)
        indices, embeddings = embeddings_of(
            classifier, self.batches, flip=self.flip, autocast=self.autocast, world=world
        )
        asks = indices < self.dataset.queries
        people, cameras = self.dataset.test.labels[indices], self.dataset.cameras[indices]
        asked, held = (Shots(people[part], cameras[part]) for part in (asks, ~asks))
        queries, gallery = embeddings[asks], embeddings[~asks]
        found = self._retrieval(queries, gallery, asked, held)
        lists = nearest(queries, gallery, asked, held, metric=self.metric)
        right = (held.people[lists] == asked.people[:, None]).to(torch.int8).masked_fill(lists < 0, -1)
        arrays = {
            "average_precision": found.average_precision,
            "first_rank": found.first_rank,
            "inverse_penalty": found.inverse_penalty,
        }
        places = indices[asks].numpy(), np.where(lists >= 0, indices[~asks][lists], -1)
        arrays |= self._examples(found, asked.people.numpy(), *places, right.numpy())
        numbers = found.numbers() | {"queries_without_match": found.unmatched}
        return OpenSetEvaluation.of(classifier.head.weight, "mAP", numbers, arrays)

    def _retrieval(self, queries: Tensor, gallery: Tensor, asked: Shots, held: Shots) -> Retrieval:
        if not self.rerank:
            return retrieval_metrics(queries, gallery, asked, held, metric=self.metric)
        distances = k_reciprocal_distances(queries, gallery, metric=self.metric)
        return retrieval_metrics_of_scores(-distances, asked, held)

    def _examples(
        self, found: Retrieval, people: np.ndarray, queries: np.ndarray, lists: np.ndarray, right: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Images of the queries with the best and the worst rankings, and of their top results.

        No person appears twice among the best, or among the worst. `right` is 1 or 0, or -1 past the end of a
        shorter ranking.
        """
        matched = np.flatnonzero(found.first_rank)
        order = matched[np.argsort(-found.average_precision[matched], kind="stable")]
        best, worst = _first_of_each(people, order), _first_of_each(people, order[::-1])
        chosen = np.unique(np.concatenate([best[:SHOWN_LISTS], worst[:SHOWN_LISTS]]))
        chosen = chosen[np.argsort(-found.average_precision[chosen], kind="stable")]
        places = np.concatenate([queries[chosen, None], lists[chosen]], axis=1)
        shown = pictures(self.dataset.test, places.clip(min=0).reshape(-1))
        return {
            "example": chosen,
            "example_picture": shown.reshape(*places.shape, *shown.shape[1:]),
            "example_right": right[chosen],
        }


def _first_of_each(people: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Keep the first entry of each person in `order`.

    >>> _first_of_each(np.array([7, 7, 8, 9]), np.array([2, 1, 0, 3]))
    array([2, 1, 3])
    """
    return order[np.sort(np.unique(people[order], return_index=True)[1])]


PROTOCOLS: dict[type[DataSet], type[Protocol]] = {
    IdentitySet: ReIdentification,
    FaceSet: Faces,
    DataSet: Classification,
}


def protocol(dataset: DataSet, batches: Batches, *, flip: bool = False, autocast: str = "none") -> Protocol:
    """The evaluation protocol for the type of `dataset`."""
    kind = next(kind for kind in type(dataset).__mro__ if kind in PROTOCOLS)
    return PROTOCOLS[kind](dataset, batches, flip, autocast)


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
