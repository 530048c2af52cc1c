"""Files that are whole or not there: written under another name, flushed, renamed."""

import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor


def write_bytes(path: Path, content: bytes) -> None:
    """Put `content` at `path`, or leave what was there."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(f"Cannot write {path}: {error.strerror}.") from error


def write_json(path: Path, value: Any) -> None:
    """`value` as JSON at `path`."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Tensors by name as safetensors; what shares memory is stored apart."""
    plain = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    write_bytes(path, save(plain, metadata))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}. Was it cut short?") from error


def read_state(path: Path) -> dict[str, Any]:
    """What `torch.save` put at `path`: tensors and plain values, never code."""
    content = path.read_bytes()
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive raises nearly anything
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read: {reason} Was it cut short?") from error


def keep_lines(path: Path, kept: Iterable[str]) -> None:
    """Replace the lines of a text file."""
    write_bytes(path, "".join(f"{line}\n" for line in kept).encode())
