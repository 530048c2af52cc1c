"""`tammes evaluate`: what a trained run does on its test images, or on others."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure accuracy and margins of a run on its test images or on other data.

    A run on people seen by cameras is measured by mAP, CMC and mINP on its queries and gallery.

    examples:
      tammes evaluate runs/photos
      tammes evaluate runs/photos ./other-photos --worst 10
      tammes evaluate runs/photos --weights best --json
      tammes evaluate runs/market --rerank
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    data: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")] = None
    """Other data with the same classes (or some of them), or with other people; its test images are used."""
    data_root: str | None = None
    """Where named data sets lie; by default where they lay in training."""
    weights: Literal["last", "best"] = "last"
    """The last weights, or those with the best accuracy or mAP."""
    split: Literal["test", "train"] = "test"
    """Which images."""
    worst: int = 5
    """So many classes of the lowest accuracy are listed."""
    metric: Literal["cosine", "euclidean"] = "cosine"
    """What the gallery is ranked by, for people."""
    rerank: bool = False
    """Re-rank the gallery by k-reciprocal neighbours, for people."""
    json: bool = False
    """Print the numbers, and those of every class, as JSON."""

    def run(self) -> int:
        from tammes.cli.tables import print_evaluation, print_numbers
        from tammes.metrics.classification import Evaluation
        from tammes.training.folder import RunFolder
        from tammes.training.reuse import evaluate_run

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
        else:
            print_numbers(numbers)
        return 0
