"""What a run is measured by: the protocol that belongs to its kind of data set."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tammes.data import Batches, DataSet, IdentitySet
from tammes.data.faces import FaceSet
from tammes.data.identities import pictures
from tammes.metrics.classification import Evaluation
from tammes.metrics.open_set import OpenSetEvaluation
from tammes.metrics.reranking import k_reciprocal_distances
from tammes.metrics.retrieval import Metric, Retrieval, Shots, nearest, retrieval, retrieval_of_scores
from tammes.training.classifier import Classifier
from tammes.training.distributed import ALONE, World
from tammes.training.evaluation import embeddings_of, evaluate
from tammes.training.faces import with_verification

Measured = Evaluation | OpenSetEvaluation
"""What a protocol gives: `headline` and `score`, `numbers()` for records, `arrays` to keep."""

SHOWN_LISTS = 4
"""So many of the best and of the worst lists keep their pictures."""


@dataclass(frozen=True, eq=False)
class Protocol(ABC):
    """How a network is measured on the test images of `dataset`.

    Args:
        dataset: whose test images are used.
        batches: of those images, in order, not augmented.
        flip: take the mean embedding of each image and its mirror image.
    """

    dataset: DataSet
    batches: Batches
    flip: bool = False

    @abstractmethod
    def measure(self, classifier: Classifier, world: World = ALONE) -> Measured:
        """One pass over the test images, which the processes of `world` share."""


class Classification(Protocol):
    """Test images of the classes that were learned: accuracy and margins."""

    def measure(self, classifier: Classifier, world: World = ALONE) -> Evaluation:
        return evaluate(classifier, self.batches, flip=self.flip, world=world)


class Faces(Classification):
    """Held-out images of the people that were learned, and pairs of others to be verified."""

    def measure(self, classifier: Classifier, world: World = ALONE) -> Evaluation:
        assert isinstance(self.dataset, FaceSet)
        held_out = super().measure(classifier, world)
        return with_verification(held_out, classifier, self.dataset, flip=self.flip, world=world)


@dataclass(frozen=True, eq=False)
class ReIdentification(Protocol):
    """Other people, to be found again by other cameras: mAP, CMC, mINP.

    Args:
        metric: of the embeddings that the prototypes see.
        rerank: by k-reciprocal neighbours.
    """

    metric: Metric = "cosine"
    rerank: bool = False

    def measure(self, classifier: Classifier, world: World = ALONE) -> OpenSetEvaluation:
        assert isinstance(self.dataset, IdentitySet)
        indices, embeddings = embeddings_of(classifier, self.batches, flip=self.flip, world=world)
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
            return retrieval(queries, gallery, asked, held, metric=self.metric)
        distances = k_reciprocal_distances(queries, gallery, metric=self.metric)
        return retrieval_of_scores(-distances, asked, held)

    def _examples(
        self, found: Retrieval, people: np.ndarray, queries: np.ndarray, lists: np.ndarray, right: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Pictures of the queries with the best and the worst lists, and of the first of each list.

        No person is twice among the best, or among the worst. `right` is 1 or 0, and -1 where a list is
        shorter.
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
    """Those of `order` whose person has not been before.

    >>> _first_of_each(np.array([7, 7, 8, 9]), np.array([2, 1, 0, 3]))
    array([2, 1, 3])
    """
    return order[np.sort(np.unique(people[order], return_index=True)[1])]


PROTOCOLS: dict[type[DataSet], type[Protocol]] = {
    IdentitySet: ReIdentification,
    FaceSet: Faces,
    DataSet: Classification,
}


def protocol(dataset: DataSet, batches: Batches, *, flip: bool = False) -> Protocol:
    """The protocol of the kind of data set that `dataset` is."""
    kind = next(kind for kind in type(dataset).__mro__ if kind in PROTOCOLS)
    return PROTOCOLS[kind](dataset, batches, flip)
