"""Evaluation protocols, one for each kind of data set."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tammes.lab.data import Batches, DataSet, IdentitySet
from tammes.lab.data.face_sets import FaceSet
from tammes.lab.data.identities import pictures
from tammes.lab.training.classifier import Classifier
from tammes.lab.training.distributed import ALONE, World
from tammes.lab.training.evaluation import embeddings_of, evaluate
from tammes.lab.training.face_evaluation import with_verification
from tammes.metrics.classification import Evaluation
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

Measured = Evaluation | OpenSetEvaluation
"""Result of a protocol: `headline` and `score` to report, `numbers()` for records, `arrays` to save."""

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
