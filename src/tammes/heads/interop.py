"""Export prototypes to a single file, and import them from other libraries.

| source | expected tensor |
|---|---|
| tammes | `weight` in a file written by `export_head`, or `head.weight` in a model's `state_dict` |
| pytorch-metric-learning | `W` (d, k) in the `state_dict` of a loss, or `loss.W` in that of a model |
| insightface | `weight` (k_r, d) in one file per rank: consecutive classes, in rank order |

Files are read as tensors and plain values, never as code: `weights_only=True`, `allow_pickle=False`.
"""

import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tammes._common.checks import reading
from tammes._common.files import write_bytes
from tammes._common.types import ClassPrototypes
from tammes.heads._manifest import MANIFEST_FORMAT, Manifest, Stored
from tammes.heads.checkpoint import save_prototypes

INSIGHTFACE = "state_dict_softmax_fc"
"""Key of the prototypes' state in insightface's per-rank checkpoints."""

MAX_INFLATION = 20
"""Maximum decompression ratio: prototypes hardly compress, whereas zeros compress a thousandfold."""


def export_head(checkpoint: str | Path, file: str | Path) -> Manifest:
    """Write the prototypes of a checkpoint to a single file as `weight`; returns the manifest.

    Its shape is (k, d), or (k, c, d) with several prototypes per class.
    The suffix selects the format: .safetensors, .npy (the array alone), .npz, or .pt and .pth for
    `torch.load`. numpy has no bfloat16, so it is saved as float32.
    """
    folder, final = Path(checkpoint), Path(file)
    if final.suffix not in FORMATS:
        raise ValueError(
            f"The output file must end in .safetensors, .npy, .npz, .pt or .pth, got {final.name!r}."
        )
    manifest = Manifest.read(folder)
    stored = Stored.open(folder, {"weight": manifest.shapes["weight"]})
    manifest.check_files(folder)
    weight = stored.rows("weight", torch.arange(manifest.num_classes))
    content = FORMATS[final.suffix](weight, manifest)
    write_bytes(final, content)
    return manifest


def _safetensors(weight: ClassPrototypes, manifest: Manifest) -> bytes:
    from safetensors.torch import save

    about = {"objective": manifest.objective, "classes": manifest.classes}
    return save({"weight": weight}, {"format": MANIFEST_FORMAT, "about": json.dumps(about)})


def _npy(weight: ClassPrototypes, manifest: Manifest) -> bytes:
    file = io.BytesIO()
    np.save(file, _array(weight), allow_pickle=False)
    return file.getvalue()


def _npz(weight: ClassPrototypes, manifest: Manifest) -> bytes:
    """With class names and objective as strings, if known."""
    about = {"objective": manifest.objective, "classes": manifest.classes}
    texts: dict[str, Any] = {
        name: np.array(value, dtype=np.str_) for name, value in about.items() if value is not None
    }
    file = io.BytesIO()
    np.savez(file, weight=_array(weight), **texts)
    return file.getvalue()


def _array(weight: ClassPrototypes) -> np.ndarray:
    return (weight.float() if weight.dtype == torch.bfloat16 else weight).numpy()


def _torch_file(weight: ClassPrototypes, manifest: Manifest) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": weight, "objective": manifest.objective, "classes": manifest.classes}, file)
    return file.getvalue()


FORMATS: dict[str, Callable[[ClassPrototypes, Manifest], bytes]] = {
    ".safetensors": _safetensors,
    ".npy": _npy,
    ".npz": _npz,
    ".pt": _torch_file,
    ".pth": _torch_file,
}
"""Serializer for each file suffix."""


def import_head(
    sources: Sequence[str | Path],
    checkpoint: str | Path,
    *,
    classes: Sequence[str] | None = None,
    name: str | None = None,
) -> Manifest:
    """Convert prototypes from other files to a checkpoint for `load_head`; returns the manifest.

    Args:
        sources: One file, or insightface's files of all ranks in any order; their names end in the rank.
        checkpoint: Folder to create; must not exist.
        classes: Class names; by default those stored in a file written by `export_head`.
        name: Name of the tensor to import, such as "model.fc.weight", (k, d); a tensor named W is (d, k). By
            default `weight` or `W`, or `head.weight` or `loss.W` within a model.
    """
    if not sources:
        raise ValueError("No file to import: pass one file, or insightface's files of all ranks.")
    paths = _in_order([Path(source) for source in sources])
    states = [_read(path) for path in paths]
    weight = torch.cat([_prototypes(path, state, name) for path, state in zip(paths, states, strict=True)])
    about = _about(paths[0], states[0]) if len(paths) == 1 else {}
    names = about.get("classes") if classes is None else list(classes)
    return save_prototypes(checkpoint, weight, objective=about.get("objective"), classes=names)


def _in_order(paths: list[Path]) -> list[Path]:
    """Sort per-rank files by rank, the last number in the name, and check that none is missing."""
    if len(paths) == 1:
        return paths
    numbers = {path: re.findall(r"\d+", path.stem) for path in paths}
    ranks = {int(found[-1]): path for path, found in numbers.items() if found}
    if sorted(ranks) != list(range(len(paths))):
        raise ValueError(
            f"The names of {len(paths)} per-rank files must end in 0 to {len(paths) - 1}, got "
            f"{', '.join(path.name for path in paths)}."
        )
    return [ranks[rank] for rank in range(len(paths))]


def _prototypes(path: Path, state: Any, name: str | None) -> ClassPrototypes:
    """The prototypes in the contents of a file, by class."""
    tensors = _tensors(state)
    name = _name_of_prototypes(path, tensors) if name is None else name
    if name not in tensors:
        raise ValueError(f"{path} has no tensor {name!r}. {_candidates(tensors)}")
    transposed = name.split(".")[-1] == "W"
    weight = _matrix(path, tensors[name], several=not transposed)
    return weight.T.contiguous() if transposed else weight


def _tensors(state: Any, name: str = "") -> dict[str, Tensor]:
    """All tensors in nested dicts by dotted name; a lone tensor is `weight`."""
    if isinstance(state, Tensor):
        return {name or "weight": state}
    if not isinstance(state, dict):
        return {}
    parts = [_tensors(value, f"{name}.{key}" if name else str(key)) for key, value in state.items()]
    return {inner: tensor for part in parts for inner, tensor in part.items()}


def _name_of_prototypes(path: Path, tensors: dict[str, Tensor]) -> str:
    """The name of the prototypes; raises with a list of candidates if it is unclear."""
    for name in (f"{INSIGHTFACE}.weight", "W", "weight"):
        if name in tensors:
            return name
    found = [name for name in tensors if re.fullmatch(r"(.*\.)?(head\.weight|W)", name)]
    if len(found) == 1:
        return found[0]
    what = "has no prototypes" if not found else f"has {len(found)} tensors that may be prototypes"
    raise ValueError(
        f"{path} {what}. Expected 'weight' (k, d) from tammes or insightface, 'W' (d, k) from "
        f"pytorch-metric-learning, or a single head.weight or loss.W in a model. {_candidates(tensors)}"
    )


def _candidates(tensors: dict[str, Tensor]) -> str:
    """The matrices that may be prototypes, and how to select one."""
    matrices = {n: t for n, t in tensors.items() if t.ndim == 2 and t.is_floating_point()}
    if not matrices:
        return "Found no matrix in it."
    listed = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in matrices.items())
    return f"Choose one of its matrices with --name (name= in Python): {listed}."


def _matrix(path: Path, value: Any, *, several: bool) -> ClassPrototypes:
    """`value` if it is a matrix or, with `several` prototypes per class allowed, has three dimensions."""
    right = isinstance(value, Tensor) and value.is_floating_point()
    if not right or not (value.ndim == 2 or (several and value.ndim == 3)):
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"Expected a matrix of prototypes in {path}, got {shape}.")
    return value.detach()


def _read(path: Path) -> Any:
    """The contents of a file: tensors and plain values, in dicts."""
    expected = (
        "Expected a complete .safetensors, .npy or .npz file, or a torch.save file of tensors and plain "
        "values only."
    )
    with reading(path, expected):
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if path.suffix in (".npy", ".npz"):
            return _read_arrays(path)
        return torch.load(path, map_location="cpu", weights_only=True)


def _read_arrays(path: Path) -> Any:
    """The array of an .npy file, or the arrays of an .npz file by name; strings as lists."""
    opened = np.load(path, allow_pickle=False)
    if isinstance(opened, np.ndarray):
        return torch.from_numpy(opened)
    with opened:
        inflated = sum(entry.file_size for entry in opened.zip.infolist())
        if inflated > MAX_INFLATION * path.stat().st_size:
            raise ValueError(
                f"{path.stat().st_size} bytes would decompress to {inflated}, which is too many."
            )
        arrays = {name: opened[name] for name in opened.files}
    return {
        name: array.tolist() if array.dtype.kind == "U" else torch.from_numpy(array)
        for name, array in arrays.items()
    }


def _about(path: Path, state: Any) -> dict[str, Any]:
    """The objective and class names stored in an exported file."""
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        if metadata.get("format") != MANIFEST_FORMAT:
            return {}
        with reading(path):
            state = state | json.loads(metadata["about"])
    if not isinstance(state, dict) or not isinstance(state.get("weight"), Tensor):
        return {}
    objective, classes = state.get("objective"), state.get("classes")
    named = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    return {
        "objective": objective if isinstance(objective, str) else None,
        "classes": classes if named else None,
    }
