"""`tammes evaluate`: evaluate a trained run on its test images, or on other data."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Evaluate a run on its test images, or on other data.

    Report accuracy and margins; for person re-identification mAP, CMC and mINP; for faces also the
    verification metrics of each pair list.

    examples:
      tammes evaluate runs/photos
      tammes evaluate runs/photos ./other-photos --worst 10
      tammes evaluate runs/photos --weights best --json
      tammes evaluate runs/market --rerank
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    data: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")] = None
    """Other data with the same classes (or some of them), or other people. Its test split is used."""
    data_root: str | None = None
    """Root directory of named data sets. Default: the one used in training."""
    weights: Literal["last", "best"] = "last"
    """Checkpoint to use: the last one, or the one with the best accuracy or mAP."""
    split: Literal["test", "train"] = "test"
    """Split to evaluate."""
    worst: int = 5
    """Number of classes with the lowest accuracy to list."""
    metric: Literal["cosine", "euclidean"] = "cosine"
    """Similarity used to rank the gallery, for person re-identification."""
    rerank: bool = False
    """Re-rank the gallery by k-reciprocal neighbors, for person re-identification."""
    json: bool = False
    """Print all metrics, overall and per class, as JSON."""

    def run(self) -> int:
        from tammes.lab.cli.printing import print_evaluation, print_numbers, print_verified
        from tammes.lab.inference.run_evaluation import evaluate_run
        from tammes.lab.training.face_evaluation import FaceEvaluation
        from tammes.lab.training.run_folder import RunFolder
        from tammes.metrics.classification import Evaluation

        folder = RunFolder(Path(self.run_folder))
        evaluation = evaluate_run(
            folder,
            self.data,
            data_root=self.data_root,
            which=self.weights,
            split=self.split,
            ranking={"metric": self.metric, "rerank": self.rerank},
        )
        classes, numbers = folder.facts.classes, evaluation.numbers()
        if self.json:
            known = isinstance(evaluation, Evaluation)
            print(json.dumps(numbers | ({"classes": evaluation.per_class(classes)} if known else {})))
        elif isinstance(evaluation, Evaluation):
            print_evaluation(evaluation, classes, self.worst)
            for done in evaluation.verified if isinstance(evaluation, FaceEvaluation) else ():
                print_verified(done.name, done.found, done.intervals)
        else:
            print_numbers(numbers)
        return 0
