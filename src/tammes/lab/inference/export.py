"""Export a trained classifier: ONNX for other runtimes, safetensors for other code."""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

import tammes
from tammes._common.files import write_bytes
from tammes.lab.models import embed
from tammes.lab.training.classifier import Classifier, DataFacts
from tammes.lab.training.run_folder import RunFolder, Which, write_tensors

Format = Literal["onnx", "safetensors"]


def export(folder: RunFolder, target: Path, *, form: Format, which: Which = "last") -> Path:
    """Write the classifier of a run to the file `target`. Return the path of the JSON file next to it.

    The JSON file and the metadata of `target` describe how to decode, crop and resize images, the outputs,
    and the class names.
    """
    classifier, facts, flip = folder.classifier(which), folder.facts, folder.config.test_flip
    described = target.with_suffix(".json")
    if described == target:
        raise ValueError(f"{target} is reserved for the description. Pass a .{form} file.")
    specification = describe(facts, flip=flip, in_graph=form == "onnx")
    metadata = {
        "tammes": tammes.__version__,
        "config": json.dumps(folder.config.settings()),
        "data": json.dumps(dataclasses.asdict(facts)),
        "classes": json.dumps(facts.classes),
        "preprocessing": json.dumps(specification["preprocessing"]),
    }
    if form == "safetensors":
        write_tensors(target, classifier.state_dict(), metadata)
    else:
        write_bytes(target, _onnx(FromPixels(classifier, facts, flip=flip), facts, metadata))
    write_bytes(described, (json.dumps(specification, indent=1, ensure_ascii=False) + "\n").encode())
    return described


def describe(facts: DataFacts, *, flip: bool, in_graph: bool) -> dict[str, Any]:
    """Describe the preprocessing and the outputs; `in_graph` if the graph itself scales and standardizes."""
    channels, height, width = facts.shape
    return {
        "tammes": tammes.__version__,
        "preprocessing": {
            "decode": "apply EXIF orientation; put transparent parts on white",
            "color_order": "RGB" if channels == 3 else "grey",
            "crop": "largest centered part with the aspect ratio of the target size",
            "resize": {"height": height, "width": width, "interpolation": "bilinear, antialiased"},
            "scale": 1 / 255,
            "mean": list(facts.mean),
            "std": list(facts.std),
            "average_with_mirror_image": flip,
            "scale_mean_std_and_mirror_in_graph": in_graph,
        },
        "input": {"name": "images", "type": "uint8", "shape": ["n", height, width, channels]},
        "outputs": {
            "probabilities": "softmax of the logits",
            "logits": "one per class",
            "embeddings": "not normalized; compare by cosine",
        },
        "classes": list(facts.classes),
    }


class FromPixels(nn.Module):
    """Maps decoded images (bytes) to probabilities, logits and embeddings."""

    scale: Tensor
    offset: Tensor

    def __init__(self, classifier: Classifier, facts: DataFacts, *, flip: bool) -> None:
        super().__init__()
        self.classifier, self.flip = classifier, flip
        mean, std = torch.tensor(facts.mean), torch.tensor(facts.std)
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("offset", -mean / std)

    def forward(self, images: UInt8[Tensor, "n h w c"]) -> tuple[Tensor, Tensor, Tensor]:
        pixels = (images.float() * self.scale + self.offset).permute(0, 3, 1, 2)
        embeddings = embed(self.classifier.backbone, pixels, flip=self.flip)
        logits = self.classifier.logits(embeddings)
        return logits.softmax(1), logits, embeddings


def _onnx(model: FromPixels, facts: DataFacts, metadata: dict[str, str]) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401 (torch's exporter needs it)
    except ModuleNotFoundError as error:
        raise ValueError(f'{error}. Install the ONNX dependencies: pip install "tammes[onnx]"') from error
    channels, height, width = facts.shape
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        torch.onnx.export(
            model.eval(),
            (torch.zeros(2, height, width, channels, dtype=torch.uint8),),
            path,
            input_names=["images"],
            output_names=["probabilities", "logits", "embeddings"],
            dynamic_shapes={"images": {0: torch.export.Dim("n")}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        written = onnx.load(path)
    for key, value in metadata.items():
        written.metadata_props.add(key=key, value=value)
    return written.SerializeToString()
