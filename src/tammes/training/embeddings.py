"""Embeddings of a folder of images as one file, and such a file in place of a network."""

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tammes.data.dataset import few
from tammes.data.images import try_read
from tammes.training.storage import write_bytes
from tammes.training.verification import BATCH, Embedded, Embedder


def embed_folder(embedder: Embedder, root: Path, files: Sequence[Path], target: Path) -> dict[str, str]:
    """Write `files` (their paths below `root`) and `embeddings` (n, d), unit vectors, to an .npz file.

    Returns the files that could not be read, which are left out, with the reasons.
    """
    names: list[str] = []
    parts = [np.empty((0, embedder.backbone.out_features), np.float32)]
    failed: dict[str, str] = {}
    for start in range(0, len(files), BATCH):
        some = files[start : start + BATCH]
        read = {file: try_read(str(file), embedder.facts.shape[1:]) for file in some}
        failed |= {str(file): image for file, image in read.items() if isinstance(image, str)}
        images = {file: image for file, image in read.items() if not isinstance(image, str)}
        if images:
            parts.append(embedder(np.stack(list(images.values()))))
            names += [file.relative_to(root).as_posix() for file in images]
    if not names:
        raise ValueError(f"{root} has no image that can be read.")
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, files=np.array(names, str), embeddings=np.concatenate(parts))
    write_bytes(target, buffer.getvalue())
    return failed


@dataclass(frozen=True, eq=False)
class StoredEmbeddings:
    """Vectors by the names of their files."""

    files: dict[str, int]
    vectors: Embedded

    def of(self, read: Callable[[int], Any], names: Sequence[str]) -> Embedded:
        """The vectors of `names`, found by as much of the end of each path as the file has."""
        rows = [self._row(Path(name)) for name in names]
        missing = [name for name, row in zip(names, rows, strict=True) if row is None]
        if missing:
            raise ValueError(f"There are no embeddings of {len(missing)} images: {few(missing)}.")
        return self.vectors[np.array(rows)]

    def _row(self, path: Path) -> int | None:
        ends = ("/".join(path.parts[start:]) for start in range(len(path.parts)))
        return next((self.files[end] for end in ends if end in self.files), None)


def read_embeddings(path: Path) -> StoredEmbeddings:
    """The vectors of an .npz file with `files` and `embeddings`, scaled to norm 1."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            files, vectors = stored["files"].tolist(), stored["embeddings"].astype(np.float32)
    except (KeyError, ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} must be an .npz file with files and embeddings: {error}") from error
    if vectors.ndim != 2 or len(vectors) != len(files) or not np.isfinite(vectors).all():
        raise ValueError(
            f"{path} must have a finite row of embeddings for each of its {len(files)} files, got shape "
            f"{vectors.shape}."
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = {name: row for row, name in enumerate(files)}
    return StoredEmbeddings(rows, vectors / np.maximum(lengths, sys.float_info.min))
