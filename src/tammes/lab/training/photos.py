"""Thumbnails of selected test images, saved with a run for its report."""

import io
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from tammes.lab.data.augmentation import center_box, whole_box
from tammes.lab.data.dataset import InMemory, OnDisk, Split
from tammes.lab.data.images import try_read
from tammes.metrics._example_samples import example_samples

LONGER_SIDE = 96
MAX_PHOTOS = 500
"""About 1.5 MB in total."""
QUALITY = 80


def with_photos(arrays: dict[str, np.ndarray], split: Split) -> dict[str, np.ndarray]:
    """Add JPEG thumbnails of the example samples to the arrays of an evaluation.

    Adds `photo_sample` (indices into the arrays), `photo_jpeg` (the concatenated files), `photo_end` (end
    offset of each), `photo_size` (height and width) and `photo_name` (class folder and file, or empty). An
    evaluation of another kind, or without the `index` of its samples, is returned unchanged.
    """
    if not {"index", "prediction", "sample_margin", "similarity", "class_accuracy"} <= arrays.keys():
        return arrays
    files = _files(split)
    size = _thumbnail_size(split.shape[1:]) if files else split.shape[1:]
    chosen = [int(sample) for sample in example_samples(arrays).ranked()[:MAX_PHOTOS]]
    read = {sample: _pixels(split, files, int(arrays["index"][sample]), size) for sample in chosen}
    jpegs = {sample: _jpeg(pixels) for sample, pixels in read.items() if isinstance(pixels, np.ndarray)}
    return arrays | {
        "photo_sample": np.array(list(jpegs), np.int64),
        "photo_jpeg": np.frombuffer(b"".join(jpegs.values()), np.uint8),
        "photo_end": np.cumsum([len(jpeg) for jpeg in jpegs.values()], dtype=np.int64),
        "photo_size": np.array(size, np.int64),
        "photo_name": np.array([_name(files, int(arrays["index"][sample])) for sample in jpegs], str),
    }


def _files(split: Split) -> tuple[str, ...]:
    """The image files, one per image; empty if the images have another source."""
    if isinstance(split, OnDisk):
        return split.paths
    return split.files if isinstance(split, InMemory) else ()


def _thumbnail_size(size: tuple[int, int]) -> tuple[int, int]:
    """Scale `size` so that its longer side is that of a thumbnail."""
    height, width = (max(1, round(side * LONGER_SIDE / max(size))) for side in size)
    return height, width


def _pixels(
    split: Split, files: tuple[str, ...], index: int, size: tuple[int, int]
) -> UInt8[np.ndarray, "h w c"] | str:
    """The crop of the image that the network sees; the reason if it is unreadable."""
    if files:  # decode again: a network input of 32 pixels is too small to look at
        stretched = isinstance(split, OnDisk) and split.stretch
        return try_read(files[index], size, whole_box if stretched else center_box)
    if isinstance(split, InMemory):
        return split.images[torch.tensor(index)].permute(1, 2, 0).contiguous().cpu().numpy()
    return split.read(index)


def _jpeg(pixels: UInt8[np.ndarray, "h w c"]) -> bytes:
    buffer = io.BytesIO()
    pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    Image.fromarray(pixels).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def _name(files: tuple[str, ...], index: int) -> str:
    return "/".join(Path(files[index]).parts[-2:]) if files else ""
