"""`tammes evaluate`: the margins of a trained run on its test images, or on others."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure accuracy and margins of a run on its test images or on other data.

    examples:
      tammes evaluate runs/photos
      tammes evaluate runs/photos ./other-photos --worst 10
      tammes evaluate runs/photos --weights best --json
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    data: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")] = None
    """Other data with the same classes (or some of them); its test images are used."""
    weights: Literal["last", "best"] = "last"
    """The last weights, or those with the best accuracy."""
    split: Literal["test", "train"] = "test"
    """Which images."""
    worst: int = 5
    """So many classes of the lowest accuracy are listed."""
    json: bool = False
    """Print the numbers, and those of every class, as JSON."""

    def run(self) -> int:
        from tammes.cli.tables import print_evaluation
        from tammes.training.folder import RunFolder
        from tammes.training.reuse import evaluate_run

        folder = RunFolder(Path(self.run_folder))
        evaluation = evaluate_run(folder, self.data, which=self.weights, split=self.split)
        classes = folder.facts.classes
        if self.json:
            per_class = evaluation.per_class(classes)
            print(json.dumps(evaluation.numbers() | {"classes": per_class}))
        else:
            print_evaluation(evaluation, classes, self.worst)
        return 0
