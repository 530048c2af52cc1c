"""Photos inside a page: each is embedded once, however often it is shown."""

import base64
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

MAX_BYTES = 1_600_000
"""Maximum bytes of JPEG per page. Base64 adds a third and charts about 300 kB, so pages stay under 3 MB."""


class Photo(NamedTuple):
    """A small JPEG file; `key` is the same for equal files, `name` the file it was made of, or empty."""

    key: str
    jpeg: bytes
    height: int
    width: int
    name: str

    @property
    def url(self) -> str:
        return _url(self.jpeg)


def stored_photos(arrays: Mapping[str, np.ndarray]) -> dict[int, Photo]:
    """The photos that were kept with an evaluation, by sample; the most important first."""
    if "photo_sample" not in arrays:
        return {}
    samples, ends, names = (arrays[f"photo_{what}"].tolist() for what in ("sample", "end", "name"))
    height, width = arrays["photo_size"].tolist()
    data = arrays["photo_jpeg"].tobytes()
    files = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return {
        sample: Photo(f"photo-{hashlib.sha256(file).hexdigest()[:12]}", file, height, width, name)
        for sample, file, name in zip(samples, files, names, strict=True)
    }


def within_budget(models: Sequence[Mapping[int, Photo]], budget: int = MAX_BYTES) -> list[dict[int, Photo]]:
    """The most important photos of each model, as many as fit on one page; models take turns."""
    kept: list[dict[int, Photo]] = [{} for _ in models]
    seen: set[str] = set()
    for turn in zip_longest(*(photos.items() for photos in models)):
        for place, entry in enumerate(turn):
            if entry is None:
                continue
            sample, photo = entry
            if photo.key not in seen:
                budget -= len(photo.jpeg)
                seen.add(photo.key)
            if budget < 0:
                return kept
            kept[place][sample] = photo
    return kept


def distinct(models: Iterable[Mapping[int, Photo]]) -> list[Photo]:
    """Every photo once."""
    return list({photo.key: photo for photos in models for photo in photos.values()}.values())


def data_url(picture: UInt8[np.ndarray, "h w c"], quality: int = 85) -> str:
    """Pixels as a JPEG data URL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture.squeeze()).save(buffer, "JPEG", quality=quality)
    return _url(buffer.getvalue())


def _url(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
