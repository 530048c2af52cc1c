"""Prototypes in and out: one safetensors file, and what other libraries leave behind.

| source | what it is |
|---|---|
| tammes | `weight` (k, d) in a safetensors file that `export_head` wrote |
| pytorch-metric-learning | `W` (d, k) in the saved `state_dict` of a loss |
| insightface | `weight` (k_r, d) in a file of each rank: consecutive classes, in the order of ranks |

Files of `torch.save` are read with `weights_only=True`: tensors and plain values, never code.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tammes.heads.checkpoint import save_prototypes
from tammes.heads.manifest import FORMAT, Manifest, Stored
from tammes.types import Prototypes

INSIGHTFACE = "state_dict_softmax_fc"
"""Where insightface's checkpoint of a rank has the state of its prototypes."""


def export_head(checkpoint: str | Path, file: str | Path) -> Manifest:
    """Write the prototypes of a checkpoint to one safetensors file as `weight`, (k, d); the manifest."""
    from safetensors.torch import save_file

    folder, final = Path(checkpoint), Path(file)
    manifest = Manifest.read(folder)
    stored = Stored.open(folder, {"weight": [manifest.num_classes, manifest.in_features]})
    weight = stored.rows("weight", torch.arange(manifest.num_classes))
    temporary = final.with_name(f".{final.name}.tmp")
    about = {"objective": manifest.objective, "classes": manifest.classes}
    save_file({"weight": weight}, temporary, {"format": FORMAT, "about": json.dumps(about)})
    os.replace(temporary, final)
    return manifest


def import_head(
    sources: Sequence[str | Path], checkpoint: str | Path, *, classes: Sequence[str] | None = None
) -> Manifest:
    """Make a checkpoint, for `load_head`, of prototypes from elsewhere; the manifest.

    Args:
        sources: one file, or insightface's of all ranks, in any order: their names end in the rank.
        checkpoint: a folder that does not exist.
        classes: names of the classes; an exported file has its own.
    """
    if not sources:
        raise ValueError("There is no file to import: give one, or insightface's of all ranks.")
    paths = _in_order([Path(source) for source in sources])
    weight = torch.cat([_prototypes(path, alone=len(paths) == 1) for path in paths])
    about = _about(paths[0]) if len(paths) == 1 else {}
    names = about.get("classes") if classes is None else list(classes)
    return save_prototypes(checkpoint, weight, objective=about.get("objective"), classes=names)


def _in_order(paths: list[Path]) -> list[Path]:
    """Files of ranks by their rank, the last number of the name: 10 comes after 9, and none is missing."""
    if len(paths) == 1:
        return paths
    numbers = {path: re.findall(r"\d+", path.stem) for path in paths}
    ranks = {int(found[-1]): path for path, found in numbers.items() if found}
    if sorted(ranks) != list(range(len(paths))):
        raise ValueError(
            f"Files of {len(paths)} ranks must have names that end in 0 to {len(paths) - 1}, got "
            f"{', '.join(path.name for path in paths)}."
        )
    return [ranks[rank] for rank in range(len(paths))]


def _prototypes(path: Path, *, alone: bool) -> Prototypes:
    """The prototypes in a file, one a row."""
    state = _read(path)
    if isinstance(state, dict):
        state = state.get(INSIGHTFACE, state)
        if alone and "W" in state:
            return _matrix(path, state["W"]).T.contiguous()
        state = state.get("weight", state)
    if not isinstance(state, Tensor):
        names = ", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise ValueError(
            f"{path} has no prototypes. Expected 'weight' (k, d) of tammes or insightface, or 'W' (d, k) of "
            f"pytorch-metric-learning; found {names or 'nothing'}."
        )
    return _matrix(path, state)


def _matrix(path: Path, value: Any) -> Prototypes:
    if not isinstance(value, Tensor) or value.ndim != 2 or not value.is_floating_point():
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"Expected a matrix of prototypes in {path}, got {shape}.")
    return value.detach()


def _read(path: Path) -> Any:
    """What a safetensors file, or one of `torch.save`, holds."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged file raises nearly anything
        raise ValueError(
            f"{path} cannot be read. Expected a whole file of safetensors, named so, or of torch.save with "
            "tensors and plain values alone."
        ) from error


def _about(path: Path) -> dict[str, Any]:
    """What an exported file says of its prototypes."""
    if path.suffix != ".safetensors":
        return {}
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    return json.loads(metadata["about"]) if metadata.get("format") == FORMAT else {}
