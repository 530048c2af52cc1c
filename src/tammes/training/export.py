"""A trained classifier as one file: ONNX for other runtimes, safetensors for other code."""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

import tammes
from tammes.models import embed
from tammes.training.classifier import Classifier, DataFacts
from tammes.training.folder import RunFolder, Which
from tammes.training.storage import write_bytes, write_tensors

Format = Literal["onnx", "safetensors"]


def export(folder: RunFolder, target: Path, *, form: Format, which: Which = "last") -> None:
    """Write the classifier of a run to the file `target`."""
    classifier, facts = folder.classifier(which), folder.facts
    metadata = {
        "tammes": tammes.__version__,
        "config": json.dumps(dataclasses.asdict(folder.config)),
        "data": json.dumps(dataclasses.asdict(facts)),
        "classes": json.dumps(facts.classes),
    }
    if form == "safetensors":
        write_tensors(target, classifier.state_dict(), metadata)
    else:
        write_bytes(
            target, _onnx(FromPixels(classifier, facts, flip=folder.config.test_flip), facts, metadata)
        )


class FromPixels(nn.Module):
    """Images from 0 to 1, as decoders give them, to logits and embeddings."""

    mean: Tensor
    std: Tensor

    def __init__(self, classifier: Classifier, facts: DataFacts, *, flip: bool) -> None:
        super().__init__()
        self.classifier, self.flip = classifier, flip
        self.register_buffer("mean", torch.tensor(facts.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(facts.std).view(-1, 1, 1))

    def forward(self, images: Float[Tensor, "n c h w"]) -> tuple[Tensor, Tensor]:
        embeddings = embed(self.classifier.backbone, (images - self.mean) / self.std, flip=self.flip)
        return self.classifier.logits(embeddings), embeddings


def _onnx(model: FromPixels, facts: DataFacts, metadata: dict[str, str]) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401 (torch's exporter needs it)
    except ModuleNotFoundError as error:
        raise ValueError(f'{error}. Install what ONNX needs: pip install "tammes[onnx]"') from error
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        torch.onnx.export(
            model.eval(),
            (torch.rand(2, *facts.shape),),
            path,
            input_names=["images"],
            output_names=["logits", "embeddings"],
            dynamic_shapes={"images": {0: torch.export.Dim("n")}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        written = onnx.load(path)
    for key, value in metadata.items():
        written.metadata_props.add(key=key, value=value)
    return written.SerializeToString()
