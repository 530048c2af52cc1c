"""Value checks at the public doors, and their wording: the rule, the value received, the way out."""

import difflib
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def finite(name: str, value: float) -> float:
    """`value` as a float, if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the largest float
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}.")
    return number


def positive(name: str, value: float) -> float:
    """`value` as a float, if it is finite and above zero."""
    number = finite(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {value}.")
    return number


def within(name: str, value: float, low: float, high: float, hint: str = "") -> float:
    """`value` as a float, if it lies in the closed interval from `low` to `high`."""
    number = finite(name, value)
    if not low <= number <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value}.{' ' + hint if hint else ''}")
    return number


def at_least(name: str, value: int, low: int) -> int:
    """`value`, if it is an integer not below `low`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}.")
    return value


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """`value`, if it is one of the `allowed` words."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def boolean(name: str, value: bool) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for a misspelt `name`, or the whole list when nothing is near."""
    known = sorted(known)
    folded = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"Did you mean {folded[close[0]]}?" if close else f"Known: {', '.join(known)}."


def readable(*tensors: Tensor) -> bool:
    """Whether reading values costs nothing: CPU tensors outside of `torch.compile`."""
    return not torch.compiler.is_compiling() and all(t.device.type == "cpu" for t in tensors)


def check_prototypes(weight: Tensor) -> tuple[int, int]:
    """k and d of `weight`, if it is a floating (k, d) matrix of at least two classes."""
    check_matrix("weight", weight)
    if len(weight) < 2:
        raise ValueError(f"Margins need at least 2 classes, got a weight of shape {tuple(weight.shape)}.")
    return len(weight), weight.shape[1]


def check_embeddings(embeddings: Tensor, in_features: int, *, empty: bool = False) -> None:
    """`embeddings` is a floating (n, in_features) matrix with at least one row, unless `empty` is allowed."""
    check_matrix("embeddings", embeddings)
    n, d = embeddings.shape
    if d != in_features:
        raise ValueError(
            f"embeddings must have {in_features} columns, as the prototypes have, got shape ({n}, {d}). "
            "Match the head's in_features to the network's last layer."
        )
    if n == 0 and not empty:
        raise ValueError(f"embeddings must have at least one row, got shape ({n}, {d}). Skip empty batches.")


def check_matrix(name: str, matrix: Tensor) -> None:
    """`matrix` is a floating matrix with at least one column."""
    if not matrix.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {matrix.dtype}. Convert with `.float()`.")
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise ValueError(f"{name} must be a matrix, one vector a row, got shape {tuple(matrix.shape)}.")


def check_per_sample(name: str, values: Tensor, n: int) -> None:
    """`values` (labels, sample weights) are a vector with one entry for each of n embeddings."""
    if values.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},), one for each embedding, got {tuple(values.shape)}.")


def check_labels(
    labels: Tensor, num_classes: int, ignore_index: int | None = None, *, check: bool = False
) -> None:
    """`labels` are a vector of integers in [0, num_classes), or `ignore_index` where one is given.

    Their range is read where that is free (see `readable`), and everywhere with `check`.
    """
    if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise TypeError(f"labels must be integers, got {labels.dtype}. Convert with `.long()`.")
    if labels.ndim != 1:
        raise ValueError(f"labels must be a vector, one class a sample, got shape {tuple(labels.shape)}.")
    if check or readable(labels):
        _check_label_range(labels, num_classes, ignore_index)


def _check_label_range(labels: Tensor, num_classes: int, ignore_index: int | None) -> None:
    labels = labels.long()  # a small integer type would wrap num_classes
    wrong = (labels < 0) | (labels >= num_classes)
    if ignore_index is not None:
        wrong &= labels != ignore_index
    if wrong.any():
        row = int(wrong.nonzero()[0])
        allowed = "" if ignore_index is None else f" or be ignore_index={ignore_index}"
        raise ValueError(
            f"labels must lie in [0, {num_classes}){allowed}, got {int(labels[row])} in row {row}. "
            "Number the classes from 0 and give a weight with one row for each."
        )


def check_finite(name: str, tensor: Tensor) -> None:
    """No entry of `tensor` is NaN or infinite; reads values, so it is for callers that asked for it."""
    wrong = ~torch.isfinite(tensor)
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name} must be finite, got {tensor[tuple(place)].item()} at {place}. "
            "Look upstream: a learning rate too large, an overflow in half precision."
        )
