"""Random augmentation of training images (shift, flip, crop, rotate, jitter, erase), applied per batch."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image
from torch import Tensor

from tammes._common.checks import at_least, one_of, within
from tammes.lab.data import counter_rng
from tammes.lab.data.counter_rng import Stream

Box = tuple[float, float, float, float]


class Moves(NamedTuple):
    """Geometric augmentation of each image of a batch: shift in pixels, flip, then rotation."""

    down: Int[Tensor, " n"]
    right: Int[Tensor, " n"]
    mirrored: Bool[Tensor, " n"]
    turned: Float[Tensor, " n"] | None = None  # radians, counter-clockwise

    def to(self, device: torch.device) -> "Moves":
        turned = None if self.turned is None else self.turned.to(device)
        return Moves(self.down.to(device), self.right.to(device), self.mirrored.to(device), turned)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random augmentation of training images. The default does nothing.

    Args:
        shift: maximum shift in pixels, in each direction.
        border: fill for the pixels a shift uncovers: the reflected image, or black (pad and crop).
        flip: flip each image horizontally in every other epoch, starting at random with the odd or the even
            ones. Each epoch flips a random half of the set, and each image alternates between its two sides.
        alternate: False flips each image independently at random in every epoch, as most libraries do.
        jitter: brightness, contrast and saturation are each multiplied by a random factor within 1 +- jitter.
        rotate: maximum rotation in degrees, in each direction. Uncovered pixels are black.
        crop: minimum fraction of the area kept by a random resized crop. Only for images read from disk.
        erase: probability of replacing a random rectangle with the mean color.
        trivial: apply torchvision's TrivialAugmentWide (Mueller and Hutter 2021): one random change of color
            or shape, of random strength. Only for images read from disk.

    >>> Augmentation(shift=4, flip=True)
    Augmentation(shift=4, flip=True, crop=None, border='reflected', erase=0.0, alternate=True, rotate=0.0,
        jitter=0.0, trivial=False)
    """

    shift: int = 0
    flip: bool = False
    crop: float | None = None
    border: Literal["reflected", "black"] = "reflected"
    erase: float = 0.0
    alternate: bool = True
    rotate: float = 0.0
    jitter: float = 0.0
    trivial: bool = False

    def __post_init__(self) -> None:
        at_least("shift", self.shift, 0)
        one_of("border", self.border, ("reflected", "black"))
        within("erase", self.erase, 0.0, 1.0, "It is a probability.")
        within("jitter", self.jitter, 0.0, 1.0, "It is the maximum deviation of a factor from 1.")
        within("rotate", self.rotate, 0.0, 180.0, "It is an angle in degrees.")
        if self.crop is not None:
            within("crop", self.crop, 0.01, 1.0, "It is the minimum fraction of the area kept.")

    def moves(self, seed: int, epoch: int, indices: Int[np.ndarray, " n"]) -> Moves:
        """Moves of the samples `indices` in this epoch, independent of how they are batched."""
        reach = 2 * self.shift + 1
        down = counter_rng.integers(seed, epoch, indices, Stream.DOWN, reach) - self.shift
        right = counter_rng.integers(seed, epoch, indices, Stream.RIGHT, reach) - self.shift
        moves = Moves(torch.from_numpy(down), torch.from_numpy(right), self._mirrored(seed, epoch, indices))
        if not self.rotate:
            return moves
        share = counter_rng.uniforms(seed, epoch, indices, Stream.ANGLE)
        return moves._replace(turned=torch.from_numpy(np.radians(between(share, -self.rotate, self.rotate))))

    def _mirrored(self, seed: int, epoch: int, indices: Int[np.ndarray, " n"]) -> Bool[Tensor, " n"]:
        if not self.flip:
            return torch.zeros(len(indices), dtype=torch.bool)
        if self.alternate:
            side = counter_rng.integers(seed, 0, indices, Stream.FLIP, 2) + epoch
        else:
            side = counter_rng.integers(seed, epoch, indices, Stream.FLIP, 2)
        return torch.from_numpy(side % 2 == 1)

    def factors(self, seed: int, epoch: int, indices: Int[np.ndarray, " n"]) -> Float[Tensor, "n 3"]:
        """Jitter factors for brightness, contrast and saturation."""
        streams = (Stream.BRIGHTNESS, Stream.CONTRAST, Stream.SATURATION)
        shares = [counter_rng.uniforms(seed, epoch, indices, stream) for stream in streams]
        return torch.from_numpy(between(np.stack(shares, 1), 1 - self.jitter, 1 + self.jitter)).float()

    def box(self, seed: int, epoch: int, index: int, width: int, height: int, aspect: float) -> Box:
        """Crop box (left, top, right, bottom) of one image, with about the given aspect ratio.

        Inception-style: area uniform in [crop, 1], change of aspect ratio log-uniform in [3/4, 4/3], sides
        clipped to the image. Without `crop`, the largest center crop.
        """
        if self.crop is None:
            return center_box(width, height, aspect)
        at = np.array([index])
        area, turn, top, left = (
            float(counter_rng.uniforms(seed, epoch, at, stream)[0])
            for stream in (Stream.AREA, Stream.ASPECT, Stream.TOP, Stream.LEFT)
        )
        area = (self.crop + (1 - self.crop) * area) * width * height
        aspect = aspect * math.exp((2 * turn - 1) * math.log(4 / 3))
        w = min(math.sqrt(area * aspect), width)
        h = min(math.sqrt(area / aspect), height)
        x, y = left * (width - w), top * (height - h)
        return (x, y, x + w, y + h)

    def changed(
        self, seed: int, epoch: int, index: int, image: UInt8[np.ndarray, "h w 3"]
    ) -> UInt8[np.ndarray, "h w 3"]:
        """One decoded image after `trivial`, independent of torch's global random numbers."""
        if not self.trivial:
            return image
        from torchvision.transforms.v2 import TrivialAugmentWide

        own = counter_rng.bits(seed, epoch, np.array([index]), Stream.TRIVIAL)[0]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(own >> np.uint64(1)))
            return np.asarray(TrivialAugmentWide()(Image.fromarray(image)))

    def erased(
        self, seed: int, epoch: int, indices: Int[np.ndarray, " n"], height: int, width: int
    ) -> Bool[Tensor, "n h w"]:
        """Mask of erased pixels (random erasing, Zhong et al. 2017): one random rectangle per image.

        Its relative area is uniform in `ERASED_AREA`. Its aspect ratio (height / width) is uniform in
        `ERASED_ASPECT`, limited to what fits.
        """
        chance, area, aspect, top, left = (
            counter_rng.uniforms(seed, epoch, indices, stream)
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


def between(share: Float[np.ndarray, "..."], low: Any, high: Any) -> Float[np.ndarray, "..."]:
    """Interpolate linearly: `share` of the way from `low` to `high`."""
    return low + share * (high - low)


def _within(start: np.ndarray, length: np.ndarray, side: int) -> Bool[np.ndarray, "n side"]:
    place = np.arange(side) - start[:, None]
    return (place >= 0) & (place < length[:, None])


def whole_box(width: int, height: int, aspect: float) -> Box:
    """The whole image, to be stretched to the target size regardless of its aspect ratio."""
    return (0.0, 0.0, float(width), float(height))


def center_box(width: int, height: int, aspect: float) -> Box:
    """The largest center crop with the given aspect ratio (width / height).

    >>> center_box(100, 60, 1.0)
    (20.0, 0.0, 80.0, 60.0)
    """
    w, h = min(width, height * aspect), min(height, width / aspect)
    x, y = (width - w) / 2, (height - h) / 2
    return (x, y, x + w, y + h)


def gather(
    pixels: UInt8[Tensor, "all h w c"], rows: Int[Tensor, " n"], moves: Moves, *, black: bool = False
) -> UInt8[Tensor, "n h w c"]:
    """Gather images `rows` of `pixels` and apply `moves`, reading and writing each byte of the batch once.

    Output pixel (y, x) comes from (y - down, x - right) of the flipped image. Outside the image it is
    reflected, or black with `black=True`. Shifts must be smaller than the image side.
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
    moved = moved if outside is None else moved.masked_fill_(outside[..., None], 0)
    return moved if moves.turned is None else rotate(moved, moves.turned)


def jitter(images: UInt8[Tensor, "n h w 3"], factors: Float[Tensor, "n 3"]) -> UInt8[Tensor, "n h w 3"]:
    """Multiply brightness, then contrast, then saturation by `factors`."""
    brightness, contrast, saturation = factors[:, :, None, None, None].unbind(1)
    colors = (images * brightness).clamp_(0, 255)
    grey = colors.matmul(LUMA.to(colors.device))[..., None].mean((1, 2), keepdim=True)
    colors = torch.lerp(grey, colors, contrast).clamp_(0, 255)
    grey = colors.matmul(LUMA.to(colors.device))[..., None]
    return torch.lerp(grey, colors, saturation).clamp_(0, 255).round_().to(torch.uint8)


LUMA = torch.tensor([0.2989, 0.587, 0.114])
"""Weights of red, green and blue in grayscale, as in torchvision."""


def rotate(images: UInt8[Tensor, "n h w c"], angles: Float[Tensor, " n"]) -> UInt8[Tensor, "n h w c"]:
    """Rotate each image counter-clockwise about its center: nearest neighbor, black outside.

    >>> image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)[None, :, :, None]
    >>> rotate(image, torch.tensor([math.pi / 2]))[0, :, :, 0].tolist()
    [[2, 4], [1, 3]]
    """
    n, h, w, c = images.shape
    y = torch.arange(h, device=images.device, dtype=angles.dtype) - (h - 1) / 2
    x = torch.arange(w, device=images.device, dtype=angles.dtype) - (w - 1) / 2
    cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
    rows = (x * sin + y[:, None] * cos + (h - 1) / 2).round().long()
    columns = (x * cos - y[:, None] * sin + (w - 1) / 2).round().long()
    outside = (rows != rows.clamp(0, h - 1)) | (columns != columns.clamp(0, w - 1))
    first = torch.arange(n, device=images.device)[:, None, None] * h
    places = (first + rows.clamp(0, h - 1)) * w + columns.clamp(0, w - 1)
    turned = images.reshape(-1, c).index_select(0, places.view(-1)).view(n, h, w, c)
    return turned.masked_fill_(outside[..., None], 0)


def _reflected(position: Int[Tensor, "n side"], side: int) -> Int[Tensor, "n side"]:
    """Reflect positions outside [0, side) about the center of the border pixel."""
    return (side - 1) - (side - 1 - position.abs()).abs()
