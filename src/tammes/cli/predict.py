"""`tammes predict`: the classes of image files."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Tell the classes of images with a trained run.

    A line for each image: its path, then classes with their probabilities, the likeliest first. An image
    that cannot be read is named on standard error, the others go on, and the exit code is 1.

    examples:
      tammes predict runs/photos cat.jpg dog.png
      tammes predict runs/photos ./inbox --top 3 --json > classes.jsonl
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES...")]
    """Image files, or folders of them."""
    top: int = 1
    """So many classes for each image."""
    weights: Literal["last", "best"] = "last"
    """The last weights, or those with the best accuracy."""
    json: bool = False
    """Print a line of JSON for each image."""

    def run(self) -> int:
        from tammes.training.folder import RunFolder
        from tammes.training.reuse import image_files, predict

        failed = 0
        files = image_files(self.images)
        for found in predict(RunFolder(Path(self.run_folder)), files, top=self.top, which=self.weights):
            if found.error is not None:
                failed += 1
                print(f"tammes: cannot read {found.path}: {found.error}", file=sys.stderr)
            elif self.json:
                classes = [{"class": c, "probability": p} for c, p in found.classes]
                print(json.dumps({"image": found.path, "classes": classes}))
            else:
                print(found.path, *(f"{name} {share:.3f}" for name, share in found.classes), sep="\t")
        return 1 if failed else 0
