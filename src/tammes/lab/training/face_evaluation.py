"""Evaluation of face networks: held-out images of the training identities, and pairs of other people."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from tammes.lab.data.face_sets import FaceSet
from tammes.lab.training.classifier import Classifier, DataFacts
from tammes.lab.training.distributed import World
from tammes.lab.training.embedder import Embedder
from tammes.lab.training.face_verification import Verified, check_color, verify_ijb, verify_pairs
from tammes.metrics.classification import Evaluation


@dataclass(frozen=True, eq=False, kw_only=True)
class FaceEvaluation(Evaluation):
    """Accuracy and margins on held-out images, and the metrics of each pair list.

    The best weights are those with the best held-out accuracy, so the pairs are never used for model
    selection.
    """

    verified: tuple[Verified, ...]

    def numbers(self) -> dict[str, Any]:
        return super().numbers() | {
            name: value for one in self.verified for name, value in one.numbers().items()
        }


def with_verification(
    held_out: Evaluation, classifier: Classifier, dataset: FaceSet, *, flip: bool, world: World
) -> FaceEvaluation:
    """Add the verification metrics of the pairs of `dataset` to `held_out`."""
    facts, size = DataFacts.of(dataset), dataset.shape[1:]
    check_color(facts)
    was_training = classifier.training
    classifier.eval()
    embedder = Embedder(classifier.backbone, facts, flip, world)
    try:
        done = [verify_pairs(embedder, pairs, size) for pairs in dataset.pairs]
        done += [verify_ijb(embedder, dataset.ijb, size)] if dataset.ijb is not None else []
    finally:
        classifier.train(was_training)
    fields = {field.name: getattr(held_out, field.name) for field in dataclasses.fields(Evaluation)}
    return FaceEvaluation(**fields, verified=tuple(done))
