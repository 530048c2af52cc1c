"""`tammes export`: a trained run as one ONNX or safetensors file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tammes._common.terminal import printable


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the trained classifier of a run as one ONNX or safetensors file.

    ONNX: input "images", uint8 (n, height, width, channels), standardized in the graph; outputs
    "probabilities", "logits" and "embeddings". Safetensors: the weights of network and prototypes. The
    metadata, and a JSON file next to it, describe how to crop and resize images and list the class names.

    examples:
      tammes export runs/photos --format onnx
      tammes export runs/photos --format safetensors --weights best --to model.safetensors
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    format: Literal["onnx", "safetensors"]
    """Output format."""
    to: str | None = None
    """Output file. Default: model.onnx or model.safetensors in the run folder."""
    weights: Literal["last", "best"] = "last"
    """Checkpoint to use: the last one, or the one with the best accuracy."""

    def run(self) -> int:
        from tammes.lab.inference.export import export
        from tammes.lab.training.run_folder import RunFolder

        folder = RunFolder(Path(self.run_folder))
        target = Path(self.to) if self.to else folder.path / f"model.{self.format}"
        described = export(folder, target, form=self.format, which=self.weights)
        for path in (target, described):
            print(printable(path))
        return 0
