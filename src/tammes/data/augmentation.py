"""Shift, mirror, crop, erase: what happens to a sample at random, and making it happen by the batch."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from tammes.checks import at_least, one_of, within
from tammes.data import counter
from tammes.data.counter import Stream

Box = tuple[float, float, float, float]


class Moves(NamedTuple):
    """How each image of a batch is moved: pixels down, pixels right, mirrored or not."""

    down: Int[Tensor, " n"]
    right: Int[Tensor, " n"]
    mirrored: Bool[Tensor, " n"]

    def to(self, device: torch.device) -> "Moves":
        return Moves(*(part.to(device) for part in self))


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens at random to a training image; the default is nothing.

    Args:
        shift: the image moves by up to this many pixels each way.
        border: what the shift lets in: the image reflected, or black, as when it is padded and cropped.
        flip: the image is mirrored in every other epoch; a coin decides which epochs, odd or even. Each
            epoch mirrors half of the set at random, as usual, but no image shows the same side twice running.
        crop: least share of the area that a random crop keeps (then resized), for images read from disk.
        erase: chance that a rectangle of the image is replaced by the mean colour.

    >>> Augmentation(shift=4, flip=True)
    Augmentation(shift=4, flip=True, crop=None, border='reflected', erase=0.0)
    """

    shift: int = 0
    flip: bool = False
    crop: float | None = None
    border: Literal["reflected", "black"] = "reflected"
    erase: float = 0.0

    def __post_init__(self) -> None:
        at_least("shift", self.shift, 0)
        one_of("border", self.border, ("reflected", "black"))
        within("erase", self.erase, 0.0, 1.0, "It is a chance.")
        if self.crop is not None:
            within("crop", self.crop, 0.01, 1.0, "It is the least share of the area that a crop keeps.")

    def moves(self, seed: int, epoch: int, indices: Int[np.ndarray, " n"]) -> Moves:
        """The moves of the samples `indices` in this epoch, whatever batch they are in."""
        reach = 2 * self.shift + 1
        down = counter.integers(seed, epoch, indices, Stream.DOWN, reach) - self.shift
        right = counter.integers(seed, epoch, indices, Stream.RIGHT, reach) - self.shift
        coin = counter.integers(seed, 0, indices, Stream.FLIP, 2)
        mirrored = (coin + epoch) % 2 == 1 if self.flip else np.zeros(len(indices), dtype=bool)
        return Moves(torch.from_numpy(down), torch.from_numpy(right), torch.from_numpy(mirrored))

    def box(self, seed: int, epoch: int, index: int, width: int, height: int, aspect: float) -> Box:
        """The part (left, top, right, bottom) of one image that is kept, of about the given width / height.

        As in Inception: the area uniform between `crop` and 1, the logarithm of the change of aspect uniform
        within 3/4 and 4/3; a side that does not fit is cut to fit. Without `crop`, the largest centred part.
        """
        if self.crop is None:
            return centre_box(width, height, aspect)
        at = np.array([index])
        area, turn, top, left = (
            float(counter.uniforms(seed, epoch, at, stream)[0])
            for stream in (Stream.AREA, Stream.ASPECT, Stream.TOP, Stream.LEFT)
        )
        area = (self.crop + (1 - self.crop) * area) * width * height
        aspect = aspect * math.exp((2 * turn - 1) * math.log(4 / 3))
        w = min(math.sqrt(area * aspect), width)
        h = min(math.sqrt(area / aspect), height)
        x, y = left * (width - w), top * (height - h)
        return (x, y, x + w, y + h)

    def erased(
        self, seed: int, epoch: int, indices: Int[np.ndarray, " n"], height: int, width: int
    ) -> Bool[Tensor, "n h w"]:
        """The pixels that are erased (Zhong et al. 2017): of a rectangle somewhere in the image.

        Its area is uniform between `ERASED_AREA`'s shares of the image, its height over its width uniform
        within `ERASED_ASPECT` and what fits.
        """
        chance, area, aspect, top, left = (
            counter.uniforms(seed, epoch, indices, stream)
            for stream in (
                Stream.ERASE,
                Stream.ERASE_AREA,
                Stream.ERASE_ASPECT,
                Stream.ERASE_TOP,
                Stream.ERASE_LEFT,
            )
        )
        pixels = between(area, *ERASED_AREA) * height * width
        low, high = (
            np.maximum(ERASED_ASPECT[0], pixels / width**2),
            np.minimum(ERASED_ASPECT[1], height**2 / pixels),
        )
        aspect = between(aspect, np.minimum(low, high), high)
        h = np.sqrt(pixels * aspect).round().clip(1, height)
        w = np.sqrt(pixels / aspect).round().clip(1, width)
        y, x = np.floor(top * (height - h + 1)), np.floor(left * (width - w + 1))
        h = np.where(chance < self.erase, h, 0)
        rows, columns = _within(y, h, height), _within(x, w, width)
        return torch.from_numpy(rows[:, :, None] & columns[:, None, :])


ERASED_AREA = (0.02, 0.4)
ERASED_ASPECT = (0.3, 1 / 0.3)


def between(share: Float[np.ndarray, " n"], low: Any, high: Any) -> Float[np.ndarray, " n"]:
    """The number that lies `share` of the way from `low` to `high`."""
    return low + share * (high - low)


def _within(start: np.ndarray, length: np.ndarray, side: int) -> Bool[np.ndarray, "n side"]:
    place = np.arange(side) - start[:, None]
    return (place >= 0) & (place < length[:, None])


def whole_box(width: int, height: int, aspect: float) -> Box:
    """All of an image, whose sides are then stretched to the wanted ones."""
    return (0.0, 0.0, float(width), float(height))


def centre_box(width: int, height: int, aspect: float) -> Box:
    """The largest centred part of an image with the given width / height.

    >>> centre_box(100, 60, 1.0)
    (20.0, 0.0, 80.0, 60.0)
    """
    w, h = min(width, height * aspect), min(height, width / aspect)
    x, y = (width - w) / 2, (height - h) / 2
    return (x, y, x + w, y + h)


def gather(
    pixels: UInt8[Tensor, "all h w c"], rows: Int[Tensor, " n"], moves: Moves, *, black: bool = False
) -> UInt8[Tensor, "n h w c"]:
    """Images `rows` of `pixels`, moved: one pass that reads and writes each byte of the batch once.

    Output pixel (y, x) comes from (y - down, x - right), reflected at the borders or `black` outside of
    them, of the image after its mirroring. Needs shifts below the side of the image.
    """
    _, h, w, c = pixels.shape
    y, x = (
        torch.arange(n, device=rows.device) - by[:, None] for n, by in ((h, moves.down), (w, moves.right))
    )
    outside = (y != y.clamp(0, h - 1))[:, :, None] | (x != x.clamp(0, w - 1))[:, None, :] if black else None
    y, x = _reflected(y, h), _reflected(x, w)
    x = torch.where(moves.mirrored[:, None], w - 1 - x, x)
    places = (rows[:, None] * h + y)[:, :, None] * w + x[:, None, :]
    moved = pixels.view(-1, c).index_select(0, places.view(-1)).view(len(rows), h, w, c)
    return moved if outside is None else moved.masked_fill_(outside[..., None], 0)


def _reflected(position: Int[Tensor, "n side"], side: int) -> Int[Tensor, "n side"]:
    """Positions outside of [0, side) mirrored at the centre of the border pixel."""
    return (side - 1) - (side - 1 - position.abs()).abs()
