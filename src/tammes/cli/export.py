"""`tammes export`: a trained run as one file for elsewhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the trained classifier of a run as one ONNX or safetensors file.

    ONNX: input "images", (n, channels, height, width), RGB or grey from 0 to 1, normalised inside; outputs
    "logits" and "embeddings"; class names in the metadata. Safetensors: weights of network and prototypes,
    config and class names in the metadata.

    examples:
      tammes export runs/photos --format onnx
      tammes export runs/photos --format safetensors --weights best --to model.safetensors
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    format: Literal["onnx", "safetensors"]
    """What to write."""
    to: str | None = None
    """The file; by default model.onnx or model.safetensors in the run's folder."""
    weights: Literal["last", "best"] = "last"
    """The last weights, or those with the best accuracy."""

    def run(self) -> int:
        from tammes.training.export import export
        from tammes.training.folder import RunFolder

        folder = RunFolder(Path(self.run_folder))
        target = Path(self.to) if self.to else folder.path / f"model.{self.format}"
        export(folder, target, form=self.format, which=self.weights)
        print(target)
        return 0
