"""Convert the three kinds of labels, class indices, mixed pairs and soft targets, to one form."""

from typing import NamedTuple

import torch
from torch import Tensor

from tammes._common import tensor_checks
from tammes._common.types import Labels, PerSample
from tammes.losses._engine.plan import Targets

IGNORE_INDEX = -100


class MixedLabels(NamedTuple):
    """Two labels and a weight, as in mixup: lam of class a and 1 - lam of class b."""

    a: Labels
    b: Labels
    lam: float | PerSample


class Labelling(NamedTuple):
    """Validated labels of a batch.

    `targets` has a column for each label a sample has, and is None for soft targets, where every class
    is one. `shares` say how much of a sample each of its labels is (None: all of it); `kept` is False for
    ignored rows; `soft` is True for distributions and False for class indices. `all_kept` is True if it is
    known, without waiting for a device, that no row is ignored.
    """

    targets: Targets | None
    shares: list[Tensor | None]
    kept: Tensor
    soft: bool = False
    all_kept: bool = False


def labelling(
    labels: Tensor | MixedLabels,
    num_samples: int,
    num_classes: int,
    ignore_index: int = IGNORE_INDEX,
    *,
    dtype: torch.dtype = torch.float32,
    check: bool = False,
) -> Labelling:
    """`labels` (n,) of integers, (n, k) of probabilities, or `MixedLabels`, checked; shares in `dtype`."""
    if isinstance(labels, MixedLabels):
        return _mixed(labels, num_samples, num_classes, ignore_index, dtype=dtype, check=check)
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a tensor or MixedLabels, got {type(labels).__name__}.")
    if labels.ndim == 2 and labels.is_floating_point():
        return _soft(labels, num_samples, num_classes, check=check)
    all_kept = tensor_checks.check_labels(labels, num_classes, ignore_index, check=check)
    tensor_checks.check_per_sample("labels", labels, num_samples)
    labels = labels.long()  # first: in uint8 -100 is 156
    kept = labels != ignore_index
    targets = labels if all_kept else torch.where(kept, labels, 0)
    return Labelling(targets[:, None], [None], kept, all_kept=all_kept)


def _mixed(
    labels: MixedLabels,
    num_samples: int,
    num_classes: int,
    ignore_index: int,
    *,
    dtype: torch.dtype,
    check: bool,
) -> Labelling:
    first = labelling(labels.a, num_samples, num_classes, ignore_index, check=check)
    second = labelling(labels.b, num_samples, num_classes, ignore_index, check=check)
    if first.targets is None or second.targets is None:
        raise ValueError(
            "MixedLabels take class indices (n,), got soft targets. Mix the soft targets directly."
        )
    lam = torch.as_tensor(labels.lam, dtype=dtype, device=first.targets.device)
    if lam.shape not in ((), (num_samples,)):
        raise ValueError(
            f"MixedLabels' lam must be one number or have shape ({num_samples},), one for each embedding, "
            f"got {tuple(lam.shape)}."
        )
    lam = lam.expand(num_samples)
    if check or tensor_checks.readable(lam):
        wrong = ~((lam >= 0) & (lam <= 1))
        if wrong.any():
            raise ValueError(f"MixedLabels' lam must lie in [0, 1], got {lam[wrong][0].item():g}.")
    targets = torch.cat([first.targets, second.targets], 1)
    return Labelling(targets, [lam, 1 - lam], first.kept & second.kept, soft=True)


def _soft(labels: Tensor, num_samples: int, num_classes: int, *, check: bool) -> Labelling:
    if labels.shape != (num_samples, num_classes):
        raise ValueError(
            f"Soft targets must have shape ({num_samples}, {num_classes}), samples by classes, "
            f"got {tuple(labels.shape)}."
        )
    if check or tensor_checks.readable(labels):
        _check_distribution(labels.detach())
    kept = torch.ones(num_samples, dtype=torch.bool, device=labels.device)
    return Labelling(None, [labels.flatten()], kept, soft=True)


def _check_distribution(labels: Tensor) -> None:
    if not (labels >= 0).all():
        raise ValueError(f"Soft targets must not be negative, got {labels.min().item():g}.")
    sums = labels.sum(1, dtype=torch.float64)
    off = (sums - 1).abs() > max(1e-3, torch.finfo(labels.dtype).eps)
    if off.any():
        row = int(off.nonzero()[0])
        raise ValueError(
            f"Soft targets must sum to 1 in each row, got {sums[row].item():g} in row {row}. "
            "Divide them by their sum, or pass class indices (n,)."
        )
