"""Channel statistics, standardization and resizing of batches of bytes."""

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor


def channel_statistics(images: UInt8[Tensor, "n c h w"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of `images` scaled to [0, 1]; a constant channel has std 1.

    Computed from a histogram, so exact in integers and fast: the bytes are read once.
    """
    c = images.shape[1]
    pixels = images.permute(0, 2, 3, 1).reshape(-1, c).numpy()
    counts = np.zeros(256 * c, np.int64)
    for part in np.array_split(pixels, max(1, len(pixels) >> 18)):
        counts += np.bincount((part + 256 * np.arange(c)).ravel(), minlength=256 * c)
    share = counts.reshape(c, 256) / len(pixels)
    value = np.arange(256) / 255
    mean = share @ value
    std = np.sqrt(np.maximum(share @ value**2 - mean**2, 0.0))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-6, std, 1.0).tolist())


def standardize(
    images: UInt8[Tensor, "n c h w"], mean: Float[Tensor, " c"], std: Float[Tensor, " c"]
) -> Float[Tensor, "n c h w"]:
    """(images / 255 - mean) / std as float32, channels-last in memory."""
    n, c, h, w = images.shape
    scale, offset = 1 / (255 * std), -mean / std
    # Rows of w * c numbers: arithmetic against a last axis of 3 would run unvectorized, 20 times slower.
    lines = images.permute(0, 2, 3, 1).reshape(n, h, w * c).to(torch.float32)
    lines.mul_(scale.repeat(w)).add_(offset.repeat(w))
    return lines.view(n, h, w, c).permute(0, 3, 1, 2)


def resize_and_crop(
    images: UInt8[Tensor, "n c h w"], size: tuple[int, int]
) -> UInt8[Tensor, "n c height width"]:
    """Resize `images` (bilinear, antialiased) to cover `size`, then center-crop."""
    h, w = images.shape[2:]
    if (h, w) == size:
        return images
    tall, wide = min(h, round(w * size[0] / size[1])), min(w, round(h * size[1] / size[0]))
    top, left = (h - tall) // 2, (w - wide) // 2
    part = images[:, :, top : top + tall, left : left + wide]
    return torch.nn.functional.interpolate(part, size=size, mode="bilinear", antialias=True)
