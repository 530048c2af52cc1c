"""`tammes predict`: classify image files."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tammes._common.terminal import printable


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Classify images with a trained run.

    Print one line per image: its path, then classes with their probabilities, most likely first.
    Unreadable images are reported on standard error and skipped; the exit code is then 1.

    examples:
      tammes predict runs/photos cat.jpg dog.png
      tammes predict runs/photos ./inbox --top 3 --json > classes.jsonl
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES...")]
    """Image files, or folders of images."""
    top: int = 1
    """Number of classes to print per image."""
    weights: Literal["last", "best"] = "last"
    """Checkpoint to use: the last one, or the one with the best accuracy."""
    json: bool = False
    """Print one JSON object per image."""

    def run(self) -> int:
        from tammes.lab.data.images import image_files
        from tammes.lab.inference.predictor import Predictor
        from tammes.lab.training.run_folder import RunFolder

        failed = 0
        files = image_files(self.images)
        predictor = Predictor(RunFolder(Path(self.run_folder)), self.weights)
        for found in predictor.predict(files, top=self.top):
            if found.error is not None:
                failed += 1
                print(printable(f"tammes: cannot read {found.path}: {found.error}"), file=sys.stderr)
            elif self.json:
                classes = [{"class": c, "probability": p} for c, p in found.classes]
                print(json.dumps({"image": found.path, "classes": classes}))
            else:
                classes = [printable(f"{name} {share:.3f}") for name, share in found.classes]
                print(printable(found.path), *classes, sep="\t")
        return 1 if failed else 0
