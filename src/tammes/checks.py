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
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}.")
    return float(value)


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


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for a misspelt `name`, or the whole list when nothing is near."""
    known = sorted(known)
    folded = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"Did you mean {folded[close[0]]}?" if close else f"Known: {', '.join(known)}."


def readable(*tensors: Tensor) -> bool:
    """Whether reading values costs nothing: CPU tensors outside of `torch.compile`."""
    return not torch.compiler.is_compiling() and all(t.device.type == "cpu" for t in tensors)
