"""Read and write tensors and optimizer states."""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tammes._common.files import WRONG_CHECKSUM, write_bytes

CHECKSUM = "sha256"
"""Metadata key of the checksum in a safetensors file."""


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write named tensors to a safetensors file."""
    write_bytes(path, encode_tensors(tensors, metadata))


def encode_tensors(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Encode named tensors and their checksum as safetensors. Tensors that share memory are copied."""
    plain = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    return save(plain, metadata | {CHECKSUM: _checksum(plain)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a safetensors file. Files of older versions have no checksum."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            stored = (file.metadata() or {}).get(CHECKSUM)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}. Is it truncated?") from error
    if stored is not None and stored != _checksum(tensors):
        raise ValueError(f"{path} cannot be read: {WRONG_CHECKSUM}")
    return tensors


def _checksum(tensors: dict[str, Tensor]) -> str:
    """Checksum of names, dtypes, shapes and values."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def read_state(path: Path) -> dict[str, Any]:
    """Load a `torch.save` file of tensors and plain values; never unpickles code."""
    content = path.read_bytes()
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged archives raise many kinds of errors
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read: {reason} Is it truncated?") from error
