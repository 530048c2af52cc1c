"""Checks of points and of the files they are written to."""

from pathlib import Path

import torch
from torch import Tensor

from tammes._common.types import Prototypes
from tammes.geometry.sphere import normalize


def on_sphere(points: Tensor, name: str) -> Prototypes:
    """`points` as unit rows in float64, if they are finite and nonzero."""
    points = points.detach().to("cpu", torch.float64)
    if not torch.isfinite(points).all() or not points.any(1).all():
        raise ValueError(f"{name} must contain finite, nonzero points.")
    return normalize(points)


def checked_suffix(path: Path) -> Path:
    """`path`, if it has a supported suffix. Call this before a long search, not after it."""
    if path.suffix not in (".npy", ".txt"):
        raise ValueError(f"The output file must end in .npy or .txt, got {path.name!r}.")
    return path
