"""The manifest of a head checkpoint, and the safetensors files it describes."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tammes._common.files import WRONG_CHECKSUM, sha256, sha256_of_file

MANIFEST_FORMAT = "tammes head 1"
MANIFEST = "head.json"
STATE = "optimizer."
"""Prefix of the names of optimizer tensors."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of a head checkpoint."""

    format: str = MANIFEST_FORMAT
    num_classes: int
    in_features: int
    objective: str | None
    classes: list[str] | None  # names, if given
    shapes: dict[str, list[int]]  # of every tensor, with the rows of all ranks
    optimizer: str | None  # its class
    sha256: dict[str, str] | None = None  # of each file, and of this manifest; older versions wrote none

    def with_checksums(self, of_files: dict[str, str]) -> "Manifest":
        """This manifest with the checksums of the files, and its own."""
        return replace(self, sha256=of_files | {MANIFEST: self._own_checksum()})

    def _own_checksum(self) -> str:
        """Checksum of all fields but the checksums."""
        plain = {name: value for name, value in asdict(self).items() if name != "sha256"}
        return sha256(json.dumps(plain, sort_keys=True).encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read and validate the manifest in `folder`."""
        expected = f"Expected a folder written by tammes.heads.save_head, with {MANIFEST} in it."
        try:
            stored = json.loads((folder / MANIFEST).read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{folder} is not a head checkpoint. {expected}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{folder / MANIFEST} cannot be read: {error}. {expected}") from error
        if not _is_manifest(stored):
            raise ValueError(f"{folder / MANIFEST} is not of the format {MANIFEST_FORMAT!r}. {expected}")
        manifest = cls(**stored)
        if manifest.sha256 is not None and manifest.sha256.get(MANIFEST) != manifest._own_checksum():
            raise ValueError(f"{folder / MANIFEST} cannot be read: {WRONG_CHECKSUM} Use another checkpoint.")
        return manifest

    def check_files(self, folder: Path, *, rank: int = 0, world_size: int = 1) -> None:
        """Check the files in `folder` against their checksums. Each rank checks its part of the files."""
        if self.sha256 is None:
            return
        for name, found in checksums(folder, rank=rank, world_size=world_size).items():
            if self.sha256.get(name) != found:
                raise ValueError(f"{folder / name} cannot be read: {WRONG_CHECKSUM} Use another checkpoint.")


def checksums(folder: Path, *, rank: int = 0, world_size: int = 1) -> dict[str, str]:
    """Checksums of this rank's part of the safetensors files in `folder`, by name."""
    files = sorted(folder.glob("*.safetensors"))
    return {file.name: sha256_of_file(file) for file in files[rank::world_size]}


def _is_manifest(stored: Any) -> bool:
    """Whether `stored` has all fields of a manifest, of the right types."""
    if not isinstance(stored, dict) or stored.get("format") != MANIFEST_FORMAT:
        return False
    names = {field.name for field in fields(Manifest)} - {"sha256"}
    if set(stored) - {"sha256"} != names or not isinstance(stored["shapes"], dict):
        return False
    sums = stored.get("sha256")
    if sums is not None and not (isinstance(sums, dict) and all(isinstance(s, str) for s in sums.values())):
        return False
    shapes = stored["shapes"].values()
    if "weight" not in stored["shapes"] or not all(isinstance(shape, list) for shape in shapes):
        return False
    sizes = [stored["num_classes"], stored["in_features"]]
    if not all(type(number) is int and number >= 0 for number in chain(sizes, *shapes)):
        return False
    classes, texts = stored["classes"], [stored["objective"], stored["optimizer"]]
    named = classes is None or (isinstance(classes, list) and len(classes) == sizes[0])
    words = all(isinstance(text, str | None) for text in chain(texts, classes or [])) if named else False
    weight = stored["shapes"]["weight"]  # (k, d), or (k, c, d) with several prototypes per class
    return words and min(sizes) > 0 and len(weight) in (2, 3) and [weight[0], weight[-1]] == sizes


def check_class_names(classes: Sequence[str], num_classes: int) -> list[str]:
    """Check that `classes` are distinct names, one per class; return them as a list."""
    names = list(classes)
    if len(names) != num_classes:
        raise ValueError(f"classes must be {num_classes} names, one for each class, got {len(names)}.")
    if len(set(names)) < len(names):
        [(twice, _)] = Counter(names).most_common(1)
        raise ValueError(f"classes must be different names, got {twice!r} twice.")
    return names


@dataclass(frozen=True)
class Stored:
    """The safetensors files of a checkpoint, validated."""

    folder: Path
    metadata: Any  # of `torch.distributed.checkpoint`

    @classmethod
    def open(cls, folder: Path, shapes: dict[str, list[int]]) -> "Stored":
        """Open the files in `folder`, and check that they contain every tensor in `shapes` completely."""
        from torch.distributed.checkpoint import HuggingFaceStorageReader

        try:
            stored = cls(folder, HuggingFaceStorageReader(str(folder)).read_metadata())
        except Exception as error:  # damaged files raise many kinds of errors
            raise ValueError(f"A file in {folder} is damaged: {error}. Use another checkpoint.") from error
        for name, shape in shapes.items():
            stored._check(name, shape)
        return stored

    def _check(self, name: str, shape: list[int]) -> None:
        """Check that each row of `name` is in exactly one file, before allocating `shape`."""
        found = self.metadata.state_dict_metadata.get(name)
        if found is None:
            fault = "there is none"
        elif list(found.size) != shape:
            fault = f"found {tuple(found.size)}"
        else:
            fault = _fault_in_cover([(list(c.offsets), list(c.sizes)) for c in found.chunks], shape)
        if fault:
            raise ValueError(
                f"Expected {name} of shape {tuple(shape)} in {self.folder}: {fault}. Is a file missing?"
            )

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of the stored tensor `name`."""
        return self.metadata.state_dict_metadata[name].properties.dtype

    def rows(self, name: str, wanted: Int[Tensor, " m"]) -> Float[Tensor, "m *rest"]:
        """The `wanted` rows of a tensor, read file by file."""
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


def _fault_in_cover(pieces: list[tuple[list[int], list[int]]], shape: list[int]) -> str | None:
    """Why `pieces` (offsets and sizes) do not tile the rows of a tensor of `shape`; None if they do."""
    if not shape:
        return None if len(pieces) == 1 else f"found it {len(pieces)} times"
    if any(offsets[1:] != [0] * (len(shape) - 1) or sizes[1:] != shape[1:] for offsets, sizes in pieces):
        return "found pieces that are not whole rows"
    reached = 0
    for first, count in sorted((offsets[0], sizes[0]) for offsets, sizes in pieces if sizes[0]):
        if first < reached:
            return f"row {first} is in two pieces"
        if first > reached:
            return f"rows {reached} to {first - 1} are missing"
        reached += count
    return None if reached == shape[0] else f"rows {reached} to {shape[0] - 1} are missing"
