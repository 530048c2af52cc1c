"""One image file to bytes of a fixed shape, whatever its mode; and the count of those that cannot be read."""

import logging
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from tammes.data.augmentation import Box, centre_box

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}

log = logging.getLogger("tammes.data")


def read_image(
    path: str | Path | BytesIO,
    size: tuple[int, int],
    channels: int = 3,
    box: Callable[[int, int, float], Box] = centre_box,
) -> UInt8[np.ndarray, "h w c"]:
    """The image file at `path` as height x width x channels bytes.

    The camera's orientation is applied; 16-bit grey is scaled to 8; transparent parts show white. Of the
    image, `box(width, height, aspect)` chooses the part that is scaled (bilinear, antialiased) to `size`:
    by default the largest centred one.

    Args:
        path: the file, or its bytes opened; of an animation, the first frame is taken.
        size: height and width of the answer.
        channels: 3 for RGB, 1 for grey.
        box: the part to keep, as left, top, right, bottom.
    """
    height, width = size
    with Image.open(path) as image:
        # A JPEG decodes at 1/2, 1/4 or 1/8 of its size in a fraction of the time; twice the answer is enough.
        image.draft(image.mode, (2 * max(size), 2 * max(size)))
        upright = ImageOps.exif_transpose(image)
        flat = _eight_bit(upright).convert("RGB" if channels == 3 else "L")
    part = box(flat.width, flat.height, width / height)
    fitted = flat.resize((width, height), Image.Resampling.BILINEAR, box=part)
    return np.asarray(fitted).reshape(height, width, channels)


def _eight_bit(image: Image.Image) -> Image.Image:
    """`image` without an alpha channel and with at most 8 bits a channel."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, whose range is not known")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels are integers of more than 16 bits, whose range is not known")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA"))
    return image


class Unreadable:
    """Counts image files that cannot be read and names them in the log; over `limit`, an error."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reasons: dict[str, str] = {}

    def note(self, path: str, reason: str) -> None:
        """Remember one file; the same file counts once."""
        if path in self.reasons:
            return
        self.reasons[path] = reason
        log.warning("skipped unreadable image %d: %s (%s)", len(self.reasons), path, reason)
        if len(self.reasons) > self.limit:
            first, why = next(iter(self.reasons.items()))
            raise ValueError(
                f"More than max_unreadable={self.limit} images could not be read; the first is {first} "
                f"({why}). Mend or remove them, or allow more."
            )


def try_read(
    path: str | BytesIO, size: tuple[int, int], box: Callable[[int, int, float], Box] = centre_box
) -> UInt8[np.ndarray, "h w 3"] | str:
    """The RGB image, or the reason why it cannot be read."""
    try:
        return read_image(path, size, box=box)
    except Exception as error:  # decoders of broken files raise nearly anything
        return f"{type(error).__name__}: {error}"
