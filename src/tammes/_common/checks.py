"""Argument validation for public functions; each error states the rule, the value and how to fix it."""

import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path


def finite(name: str, value: float) -> float:
    """`value` as a float, if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):  # numpy's numbers are Real too
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
    """`value` as a float, if it lies in the closed interval [`low`, `high`]."""
    number = finite(name, value)
    if not low <= number <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value}.{' ' + hint if hint else ''}")
    return number


def at_least(name: str, value: int, low: int) -> int:
    """`value` as an int, if it is an integer (including numpy integers) of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}.")
    return int(value)


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """`value`, if it is one of the `allowed` strings."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def boolean(name: str, value: bool) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'Did you mean ...?' for a misspelled `name`, or the list of `known` names if none is close."""
    known = sorted(known)
    folded = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"Did you mean {folded[close[0]]}?" if close else f"Known: {', '.join(known)}."


@contextmanager
def reading(path: str | Path, way_out: str = "Was it truncated or edited?") -> Iterator[None]:
    """Turn any failure to parse a file into a single error that names the file.

    >>> with reading("config.json"):
    ...     {}["data"]
    Traceback (most recent call last):
    ValueError: config.json cannot be read: KeyError: 'data'. Was it truncated or edited?
    """
    try:
        yield
    except Exception as error:  # corrupt content can raise nearly anything
        told = isinstance(error, ValueError | OSError) and str(path) in str(error)
        if told or (isinstance(error, OSError) and (error.filename or error.errno is None)):
            raise  # the error already names the file
        plain = type(error) is ValueError and str(error)
        reason = str(error) if plain else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path} cannot be read: {reason.partition(chr(10))[0].rstrip('.')}. {way_out}"
        ) from error
