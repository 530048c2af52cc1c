"""What a checkpoint says it holds, and the files that must hold it."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

FORMAT = "tammes head 1"
MANIFEST = "head.json"
STATE = "optimizer."
"""What the names of an optimiser's tensors begin with."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint of a head holds."""

    format: str = FORMAT
    num_classes: int
    in_features: int
    objective: str | None
    classes: list[str] | None  # names, where they were given
    shapes: dict[str, list[int]]  # of every tensor, the rows of all ranks together
    optimizer: str | None  # its class

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest in `folder`; anything else there is refused."""
        expected = f"Expected a folder that tammes.heads.save_head wrote, with {MANIFEST} in it."
        try:
            stored = json.loads((folder / MANIFEST).read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{folder} is no checkpoint of a head. {expected}") from None
        except ValueError as error:
            raise ValueError(f"{folder / MANIFEST} cannot be read: {error}. {expected}") from error
        if not _is_manifest(stored):
            raise ValueError(f"{folder / MANIFEST} is not of the format {FORMAT!r}. {expected}")
        return cls(**stored)


def _is_manifest(stored: Any) -> bool:
    """Whether what was read has the fields of a manifest, and numbers and shapes where they belong."""
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        return False
    if set(stored) != {field.name for field in fields(Manifest)} or not isinstance(stored["shapes"], dict):
        return False
    shapes = stored["shapes"].values()
    if "weight" not in stored["shapes"] or not all(isinstance(shape, list) for shape in shapes):
        return False
    numbers = [stored["num_classes"], stored["in_features"], *chain(*shapes)]
    return all(isinstance(number, int) for number in numbers)


def check_names(classes: Sequence[str], num_classes: int) -> list[str]:
    """`classes` as a list, if they are as many different names as there are classes."""
    names = list(classes)
    if len(names) != num_classes:
        raise ValueError(f"classes must be {num_classes} names, one for each class, got {len(names)}.")
    if len(set(names)) < len(names):
        [(twice, _)] = Counter(names).most_common(1)
        raise ValueError(f"classes must be different names, got {twice!r} twice.")
    return names


@dataclass(frozen=True)
class Stored:
    """The safetensors files of a checkpoint, whole and complete."""

    folder: Path
    metadata: Any  # of `torch.distributed.checkpoint`

    @classmethod
    def open(cls, folder: Path, shapes: dict[str, list[int]]) -> "Stored":
        """The files in `folder`, if they have all of `shapes`: a piece that is missing or cut is refused."""
        from safetensors import SafetensorError
        from torch.distributed.checkpoint import HuggingFaceStorageReader

        try:
            stored = cls(folder, HuggingFaceStorageReader(str(folder)).read_metadata())
        except SafetensorError as error:
            raise ValueError(f"A file in {folder} is not whole: {error}. Use another checkpoint.") from error
        for name, shape in shapes.items():
            stored._check(name, shape)
        return stored

    def _check(self, name: str, shape: list[int]) -> None:
        found = self.metadata.state_dict_metadata.get(name)
        pieces = [] if found is None else [list(chunk.sizes) for chunk in found.chunks]
        rows = sum(piece[0] for piece in pieces if piece) if shape else len(pieces)
        if found is None or list(found.size) != shape or rows != (shape[0] if shape else 1):
            raise ValueError(
                f"Expected {name} of shape {tuple(shape)} in {self.folder}, found {rows} of its "
                f"{shape[0] if shape else 1} rows. Is a file missing?"
            )

    def dtype(self, name: str) -> torch.dtype:
        """The dtype that `name` was saved in."""
        return self.metadata.state_dict_metadata[name].properties.dtype

    def rows(self, name: str, wanted: Int[Tensor, " m"]) -> Float[Tensor, "m *rest"]:
        """Some rows of a tensor, a file at a time."""
        from safetensors import safe_open
        from torch.distributed.checkpoint.metadata import MetadataIndex

        found = self.metadata.state_dict_metadata[name]
        rows = torch.empty((len(wanted), *found.size[1:]), dtype=self.dtype(name))
        for chunk in found.chunks:
            start, stop = chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0]
            here = (wanted >= start) & (wanted < stop)
            file = self.metadata.storage_data[MetadataIndex(name, chunk.offsets)].relative_path
            if here.any():
                with safe_open(file, framework="pt") as opened:
                    rows[here] = opened.get_tensor(name)[wanted[here] - start]
        return rows
