"""insightface's `train.rec`, `train.idx` and `property`, read and written without mxnet.

A record file is a sequence of parts: a magic number, a length with a flag in its upper three bits, the
payload, and zero padding to a multiple of four bytes. Flag 0 is a complete record. Flags 1, 2 and 3 are the
first, a middle and the last part of a record whose payload contains the magic number; it is split there and
the number is dropped. A record is a header (flag, label, two numbers) and an encoded image. A header flag
above 0 is a number of labels, which follow the header and replace the single one.

Each line of `train.idx` has a key and the byte offset of its record. If the flag of record 0 is above 0, it
is not an image: its first label is one past the key of the last image. `property` contains classes, height
and width.
"""

import io
import mmap
import os
import struct
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from tammes._common.checks import at_least, reading
from tammes.lab.data.augmentation import Augmentation, Box, center_box
from tammes.lab.data.dataset import DataSet, Encoded, check_label_vector, stratified
from tammes.lab.data.images import try_read
from tammes.lab.data.text_files import whole_number

MAGIC = struct.pack("<I", 0xCED7230A)
PART = struct.Struct("<4sI")
HEADER = struct.Struct("<IfQQ")
LENGTH = (1 << 29) - 1
WHOLE, FIRST, LAST = 0, 1, 3

HALF = (0.5, 0.5, 0.5)
"""Mean and standard deviation usually used for face networks."""
HELD_OUT = 0.05
MOST_PIXELS = 2**24
"""Augmentation of a face at training size."""
LONGEST_PROPERTY = 200
"""Maximum number of bytes to read from `property`."""


class RecordFile:
    """Records of a `.rec` file, by byte offset. Each process opens the file itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_map": None}

    @property
    def content(self) -> mmap.mmap:
        """The memory-mapped file."""
        if self._map is None:
            with self.path.open("rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    raise ValueError(f"{self.path} is empty.")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map

    def record(self, start: int) -> bytes:
        """The record at byte `start`."""
        parts: list[bytes] = []
        flag = FIRST
        while flag not in (WHOLE, LAST):
            length, flag = self.part(start)
            start += PART.size
            parts.append(self.content[start : start + length])
            start += length + -length % 4
        return MAGIC.join(parts)

    def part(self, start: int) -> tuple[int, int]:
        """Length and flag of the part at byte `start`."""
        size = len(self.content)
        magic, word = PART.unpack_from(self.content, start) if start + PART.size <= size else (MAGIC, LENGTH)
        length, flag = word & LENGTH, word >> 29
        if magic != MAGIC or flag > LAST:
            raise ValueError(
                f"{self.path} has no record at byte {start}: it is damaged or does not match its index."
            )
        if start + PART.size + length > size:
            raise ValueError(f"{self.path} ends at byte {size}, within a record. Is it truncated?")
        return length, flag

    def unpack(self, start: int) -> tuple[Float[np.ndarray, " labels"], bytes]:
        """Labels and encoded image of the record at byte `start`."""
        record = self.record(start)
        if len(record) < HEADER.size or len(record) < HEADER.size + 4 * HEADER.unpack_from(record)[0]:
            raise ValueError(
                f"{self.path} has a record of {len(record)} bytes at byte {start}, which is too short."
            )
        flag, label, _, _ = HEADER.unpack_from(record)
        end = HEADER.size + 4 * flag
        labels = np.frombuffer(record[HEADER.size : end], "<f4") if flag else np.array([label], "<f4")
        return labels, record[end:]


@dataclass(frozen=True, eq=False)
class Recorded(Encoded):
    """Labeled images in a record file, by the byte offsets of their records."""

    file: RecordFile
    starts: Int64[np.ndarray, " n"]
    labels: Int64[Tensor, " n"]
    size: tuple[int, int]
    max_unreadable: int = 100

    def __post_init__(self) -> None:
        check_label_vector(self.labels, len(self.starts))
        at_least("max_unreadable", self.max_unreadable, 0)

    def name(self, index: int) -> str:
        return f"{self.file.path} at byte {self.starts[index]}"

    def read(
        self, index: int, box: Callable[[int, int, float], Box] = center_box
    ) -> UInt8[np.ndarray, "h w 3"] | str:
        try:
            _, image = self.file.unpack(int(self.starts[index]))
        except ValueError as error:
            return str(error)
        return try_read(io.BytesIO(image), self.size, box)

    def select(self, indices: Int64[Tensor, " m"]) -> "Recorded":
        return replace(self, starts=self.starts[indices.numpy()], labels=self.labels[indices])


def records(path: Path, *, image_size: tuple[int, int] | None = None, max_unreadable: int = 100) -> DataSet:
    """Load the faces of `train.rec`, `train.idx` and `property`. A twentieth is held out for testing.

    Args:
        path: folder of the three files.
        image_size: height and width. Default: those of `property`.
        max_unreadable: maximum number of unreadable images to skip before failing.
    """
    classes, size = read_property(path / "property")
    file = RecordFile(path / "train.rec")
    keys, starts = read_index(path / "train.idx")
    kept = _image_keys(file, keys, starts)
    keys, starts = keys[kept], starts[kept]
    if classes > len(keys):
        raise ValueError(
            f"{path / 'property'} gives {classes} identities, but {path / 'train.idx'} has {len(keys)} "
            "images."
        )
    labels = _labels(file, keys, starts, classes)
    whole = Recorded(file, starts, torch.from_numpy(labels), image_size or size, max_unreadable)
    train, test = map(whole.select, stratified(whole.labels, HELD_OUT))
    return DataSet(
        name=path.resolve().name,
        train=train,
        test=test,
        classes=tuple(map(str, range(classes))),
        mean=HALF,
        std=HALF,
        augmentation=Augmentation(flip=True),
    )


def read_property(path: Path) -> tuple[int, tuple[int, int]]:
    """Number of identities, and height and width of the images."""
    with path.open("rb") as file:
        text = file.read(LONGEST_PROPERTY).decode("utf-8", errors="replace").strip()
    numbers = [whole_number(word.strip()) for word in text.split(",")]
    if len(numbers) != 3 or None in numbers:
        raise ValueError(
            f"{path} must contain identities, height and width, as in 93431,112,112, got {text!r}."
        )
    classes, height, width = (number or 0 for number in numbers)
    if not 0 < height * width <= MOST_PIXELS:
        raise ValueError(
            f"{path} must contain a plausible height and width of face images, got {height} x {width}."
        )
    return classes, (height, width)


def read_index(path: Path) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Keys and the byte offsets of their records."""
    with reading(path, "Expected a key and a byte offset in each line."), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about an empty file, which raises below
        table = np.loadtxt(path, dtype=np.int64, ndmin=2)
    if table.shape[1] != 2 or not len(table) or (table < 0).any():
        raise ValueError(
            f"Each line of {path} must have a key and a byte offset, got a table of shape {table.shape}."
        )
    return table[:, 0], table[:, 1]


def _image_keys(
    file: RecordFile, keys: Int64[np.ndarray, " n"], starts: Int64[np.ndarray, " n"]
) -> np.ndarray:
    """The keys of images: all, or those that record 0 declares."""
    if keys[0] != 0:
        return np.ones(len(keys), bool)
    labels, image = file.unpack(int(starts[0]))
    return np.ones(len(keys), bool) if image else (keys > 0) & (keys < labels[0])


def _labels(
    file: RecordFile, keys: Int64[np.ndarray, " n"], starts: Int64[np.ndarray, " n"], classes: int
) -> Int64[np.ndarray, " n"]:
    """The first label of every image; raise if the index does not match the file."""
    labels = np.empty(len(keys), np.int64)
    for place, (key, start) in enumerate(zip(keys.tolist(), starts.tolist(), strict=True)):
        try:
            file.part(start)
            flag, label, _, _ = HEADER.unpack_from(file.content, start + PART.size)
            if flag:
                (label,) = struct.unpack_from("<f", file.content, start + PART.size + HEADER.size)
        except (ValueError, struct.error) as error:
            raise ValueError(f"Key {key} of train.idx: {error}") from error
        if not (0 <= label < classes and label == int(label)):
            raise ValueError(
                f"{file.path}: key {key} has the label {label:g}, but property says {classes} identities, "
                "numbered from 0."
            )
        labels[place] = label
    return labels


def write_records(path: Path, images: Iterable[tuple[int, bytes]], size: tuple[int, int]) -> None:
    """Write labeled, encoded images to a new folder as `train.rec`, `train.idx` and `property`.

    Args:
        path: the folder to create.
        images: pairs of label and encoded image, sorted by label, starting at 0.
        size: height and width, for `property`.
    """
    path.mkdir(parents=True)
    index: list[str] = []
    label = count = 0
    with (path / "train.rec").open("wb") as file:
        # Reserve space for record 0. Its two labels are known only at the end.
        file.write(_packed(HEADER.pack(2, 0.0, 0, 0) + bytes(8)))
        for count, (label, image) in enumerate(images, 1):
            index.append(f"{count}\t{file.tell()}\n")
            file.write(_packed(HEADER.pack(0, label, count, 0) + image))
        file.seek(0)
        file.write(_packed(HEADER.pack(2, 0.0, 0, 0) + struct.pack("<2f", count + 1, count + 1)))
    (path / "train.idx").write_text("0\t0\n" + "".join(index))
    (path / "property").write_text(f"{label + 1},{size[0]},{size[1]}\n")


def _packed(record: bytes) -> bytes:
    """Split a record into parts wherever the magic number occurs at a multiple of four bytes."""
    cuts = [at for at in range(0, len(record) - 3, 4) if record[at : at + 4] == MAGIC]
    pieces, start = [], 0
    for cut in [*cuts, len(record)]:
        pieces.append(record[start:cut])
        start = cut + len(MAGIC)
    flags = [WHOLE] if len(pieces) == 1 else [FIRST, *[2] * (len(pieces) - 2), LAST]
    return b"".join(
        PART.pack(MAGIC, flag << 29 | len(piece)) + piece + bytes(-len(piece) % 4)
        for flag, piece in zip(flags, pieces, strict=True)
    )
