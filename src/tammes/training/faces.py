"""How a network that learns faces is measured: on held-out images of its people, and on pairs of others."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from tammes.data.faces import FaceSet
from tammes.metrics.classification import Evaluation
from tammes.training.classifier import Classifier, DataFacts
from tammes.training.distributed import World
from tammes.training.verification import Embedder, verify_ijb, verify_pairs


@dataclass(frozen=True, eq=False, kw_only=True)
class FaceEvaluation(Evaluation):
    """Accuracy and margins on held-out images, and the numbers of each list of pairs.

    The best weights are those of the best accuracy on held-out images, so that the pairs choose nothing.
    """

    verified: dict[str, float]

    def numbers(self) -> dict[str, Any]:
        return super().numbers() | self.verified


def with_verification(
    held_out: Evaluation, classifier: Classifier, dataset: FaceSet, *, flip: bool, world: World
) -> FaceEvaluation:
    """`held_out` with the numbers of the pairs of `dataset` beside it."""
    was_training = classifier.training
    classifier.eval()
    size = dataset.shape[1:]
    embedder = Embedder(classifier.backbone, DataFacts.of(dataset), flip, world)
    try:
        done = [verify_pairs(embedder, pairs, size) for pairs in dataset.pairs]
        done += [verify_ijb(embedder, dataset.ijb, size)] if dataset.ijb is not None else []
    finally:
        classifier.train(was_training)
    verified = {name: value for one in done for name, value in one.numbers().items()}
    fields = {field.name: getattr(held_out, field.name) for field in dataclasses.fields(Evaluation)}
    return FaceEvaluation(**fields, verified=verified)
