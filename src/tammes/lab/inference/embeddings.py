"""Write the embeddings of a folder of images to a file, and use such a file in place of a network."""

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tammes._common.files import write_bytes
from tammes._common.wording import few
from tammes.lab.data.arrays import read_arrays
from tammes.lab.data.image_folders import folder_labels
from tammes.lab.inference.predictor import Predictor
from tammes.lab.training.embedder import EMBED_BATCH, Embedded

EmbeddingFormat = Literal["npz", "parquet"]


def embed_folder(
    predictor: Predictor, root: Path, files: Sequence[Path], target: Path, form: EmbeddingFormat = "npz"
) -> dict[str, str]:
    """Write `files` (their paths below `root`) and `embeddings` (n, d), unit vectors, to one file.

    If the files are in class folders, the file also contains their `labels`. If the run was trained on these
    classes, an .npz file also contains `classes` and `prototypes`, so that `tammes inspect` can read it. A
    Parquet file has the columns file, label (null without class folders) and vector. Returns the unreadable
    files, which are skipped, with the reasons.
    """
    write = _to_parquet if form == "parquet" else _to_npz
    names: list[str] = []
    parts = [np.empty((0, predictor.embedder.backbone.out_features), np.float32)]
    failed: dict[str, str] = {}
    for start in range(0, len(files), EMBED_BATCH):
        read = {file: predictor.try_read(str(file)) for file in files[start : start + EMBED_BATCH]}
        failed |= {str(file): reason for file, (picture, reason) in read.items() if picture is None}
        pictures = {file: picture for file, (picture, _) in read.items() if picture is not None}
        if pictures:
            parts.append(predictor.embed(np.stack(list(pictures.values()))))
            names += [file.relative_to(root).as_posix() for file in pictures]
    if not names:
        raise ValueError(f"{root} has no readable image.")
    arrays = {"files": np.array(names, str), "embeddings": np.concatenate(parts)}
    arrays |= _class_arrays(predictor, root, [root / name for name in names])
    write_bytes(target, write(arrays))
    return failed


def _to_npz(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _to_parquet(arrays: dict[str, np.ndarray]) -> bytes:
    """One row per file; vectors are lists of a fixed length, as data frames and vector viewers read them."""
    import pyarrow as pa
    from pyarrow import parquet

    vectors = arrays["embeddings"].astype(np.float32)
    labels = arrays["labels"].tolist() if "labels" in arrays else [None] * len(vectors)
    table = pa.table(
        {
            "file": pa.array(arrays["files"].tolist(), pa.string()),
            "label": pa.array(labels, pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
        }
    )
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def _class_arrays(predictor: Predictor, root: Path, files: Sequence[Path]) -> dict[str, np.ndarray]:
    """Labels of files in class folders; also the run's prototypes and class names if it has these classes."""
    labels = folder_labels(root, files)
    if labels is None:
        return {}
    arrays = {"labels": np.array(labels, str)}
    if set(labels) <= set(predictor.facts.classes):
        weight = predictor.classifier.head.weight.detach().float().cpu().numpy()
        arrays |= {"classes": np.array(predictor.facts.classes, str), "prototypes": weight}
    return arrays


@dataclass(frozen=True, eq=False)
class StoredEmbeddings:
    """Stored unit embeddings, by file name."""

    files: dict[str, int]
    vectors: Embedded

    def of(self, read: Callable[[int], Any], names: Sequence[str]) -> Embedded:
        """The embeddings of `names`, matched by the trailing parts of each path."""
        rows = [self._row(Path(name)) for name in names]
        missing = [name for name, row in zip(names, rows, strict=True) if row is None]
        if missing:
            raise ValueError(f"{len(missing)} images have no embeddings: {few(missing)}.")
        return self.vectors[np.array(rows)]

    def _row(self, path: Path) -> int | None:
        ends = ("/".join(path.parts[start:]) for start in range(len(path.parts)))
        return next((self.files[end] for end in ends if end in self.files), None)


def read_embeddings(path: Path) -> StoredEmbeddings:
    """Read `files` and `embeddings` from an .npz file and scale the embeddings to unit norm."""
    stored = read_arrays(path, ("files", "embeddings"))
    names, given = stored["files"], stored["embeddings"]
    if names.dtype.kind != "U" or names.ndim != 1 or given.dtype.kind not in "fiu":
        raise ValueError(
            f"{path} must have `files` as text and `embeddings` as numbers, got {names.dtype} of shape "
            f"{names.shape} and {given.dtype}."
        )
    files, vectors = names.tolist(), given.astype(np.float32)
    if vectors.ndim != 2 or len(vectors) != len(files) or not np.isfinite(vectors).all():
        raise ValueError(
            f"{path} must have a finite row of embeddings for each of its {len(files)} files, got shape "
            f"{vectors.shape}."
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = {name: row for row, name in enumerate(files)}
    return StoredEmbeddings(rows, vectors / np.maximum(lengths, sys.float_info.min))
