"""Decode image files of any mode to bytes of a fixed shape, and count unreadable ones."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from tammes._common.memory import give_back_freed_memory
from tammes._common.terminal import printable
from tammes.lab.data.augmentation import Box, center_box

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Formats that Pillow may detect, whatever the file name. By default it runs Ghostscript on PostScript."""

MAX_PIXELS = 2**26
"""Maximum number of pixels of a file. A few hundred kilobytes can encode billions."""
BYTES_PER_PIXEL = 8
"""Peak memory of decoding, in bytes per pixel: the decoded image plus a rotated or converted copy."""
BAND = 2**20
"""Number of pixels to convert at once."""

log = logging.getLogger("tammes.lab.data")


class Budget:
    """A memory budget in bytes, shared by threads. A thread waits until its request fits.

    A request larger than the whole budget waits until it is the only one.

    >>> with Budget(100).reserve(30) as left:
    ...     left
    70
    """

    def __init__(self, size: int) -> None:
        self.size = self.left = size
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, cost: int) -> Iterator[int]:
        cost = min(cost, self.size)
        with self._changed:
            self._changed.wait_for(lambda: cost <= self.left)
            self.left -= cost
            left = self.left
        try:
            yield left
        finally:
            with self._changed:
                self.left += cost
                self._changed.notify_all()


IN_FLIGHT = Budget(2**29)
"""Memory budget of the images being decoded in this process."""


def open_image(path: str | Path | BytesIO) -> Image.Image:
    """Open an image file and read its header. All image files are opened here, restricted to `FORMATS`."""
    return Image.open(path, formats=FORMATS)


def read_image(
    path: str | Path | BytesIO,
    size: tuple[int, int],
    channels: int = 3,
    box: Callable[[int, int, float], Box] = center_box,
) -> UInt8[np.ndarray, "h w c"]:
    """Decode an image file to height x width x channels bytes.

    EXIF orientation is applied, 16-bit grayscale is scaled to 8 bits, and transparent pixels become white.
    `box(width, height, aspect)` chooses the crop, which is resized (bilinear, antialiased) to `size`.

    Args:
        path: the file, or a buffer of its bytes. For an animation, the first frame is used.
        size: height and width of the result.
        channels: 3 for RGB, 1 for grayscale.
        box: function that returns the crop as left, top, right, bottom. Default: the largest center crop.
    """
    height, width = size
    with open_image(path) as image:
        # A JPEG decodes at 1/2, 1/4 or 1/8 of its size in a fraction of the time; twice `size` is enough.
        image.draft(image.mode, (2 * max(size), 2 * max(size)))
        pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            raise ValueError(
                f"it has {pixels / 1e6:.0f} million pixels, more than {MAX_PIXELS / 1e6:.0f} million. "
                "Scale it down first."
            )
        with IN_FLIGHT.reserve(BYTES_PER_PIXEL * pixels):
            fitted = _fitted(image, size, "RGB" if channels == 3 else "L", box)
            image.close()
            if pixels > 4 * BAND:
                give_back_freed_memory()
    return np.asarray(fitted).reshape(height, width, channels)


def _fitted(
    image: Image.Image, size: tuple[int, int], mode: str, box: Callable[[int, int, float], Box]
) -> Image.Image:
    """Apply the orientation, crop `image` by `box`, convert it to `mode` and resize it to `size`."""
    height, width = size
    ImageOps.exif_transpose(image, in_place=True)
    flat = _flat(image, mode)
    part = box(flat.width, flat.height, width / height)
    return flat.resize((width, height), Image.Resampling.BILINEAR, box=part)


def _flat(image: Image.Image, mode: str) -> Image.Image:
    """Convert `image` to "RGB" or "L", some rows at a time: the intermediates take many bytes per pixel."""
    image.load()
    if image.mode == mode and not image.has_transparency_data:
        return image
    rows = max(1, BAND // image.width)
    if rows >= image.height:
        return _eight_bit(image).convert(mode)
    flat = Image.new(mode, image.size)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        flat.paste(_eight_bit(band).convert(mode), (0, top))
    return flat


def _eight_bit(image: Image.Image) -> Image.Image:
    """Remove the alpha channel and reduce `image` to at most 8 bits per channel."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels are integers of more than 16 bits and unknown range")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA"))
    return image


class Unreadable:
    """Counts unreadable image files and names each in the log; raises beyond `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reasons: dict[str, str] = {}

    def note(self, path: str, reason: str) -> None:
        """Record an unreadable file; the same file counts once."""
        if path in self.reasons:
            return
        self.reasons[path] = reason
        log.warning(
            "skipped unreadable image %d: %s (%s)", len(self.reasons), printable(path), printable(reason)
        )
        if len(self.reasons) > self.limit:
            first, why = next(iter(self.reasons.items()))
            raise ValueError(
                f"More than max_unreadable={self.limit} images could not be read; the first is {first} "
                f"({why}). Repair or remove them, or raise max_unreadable."
            )


def try_read(
    path: str | BytesIO, size: tuple[int, int], box: Callable[[int, int, float], Box] = center_box
) -> UInt8[np.ndarray, "h w 3"] | str:
    """Decode an RGB image; return the reason if it is unreadable."""
    try:
        return read_image(path, size, box=box)
    except Exception as error:  # decoders raise many kinds of errors on broken files
        return f"{type(error).__name__}: {error}"


def image_files(paths: Sequence[str]) -> list[str]:
    """The files among `paths` and all image files below the folders among them, sorted."""
    found: list[str] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(str(p) for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
        else:
            found.append(str(path))
    if not found:
        raise ValueError(f"No images found in {', '.join(paths) or 'an empty list of paths'}.")
    return found
