"""Checks of the parameters of terms, for their `__post_init__`."""

from collections.abc import Iterable, Sequence
from typing import Any

from tammes._common import checks
from tammes.losses.learnable import Learnable, Scale
from tammes.losses.objective import Term

PerClassValue = float | Sequence[float]
"""One number for all classes, or a sequence with one per class, stored as a tuple."""


def per_class_margin(
    name: str, value: PerClassValue, low: float, high: float, hint: str = ""
) -> PerClassValue:
    """A margin, or a tuple with one per class, each checked to lie in [low, high]."""
    value = _plain(value)
    if isinstance(value, int | float):
        return checks.within(name, value, low, high, hint)
    return tuple(
        checks.within(f"{name}[{j}]", margin, low, high, hint)
        for j, margin in enumerate(one_per_class(name, value))
    )


def one_per_class(name: str, values: Any) -> tuple[float, ...]:
    """A tuple of finite numbers, one for each of at least two classes."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a number or a sequence with one for each class, got {values!r}.")
    numbers = tuple(checks.finite(f"{name}[{j}]", _plain(value)) for j, value in enumerate(values))
    if len(numbers) < 2:
        raise ValueError(f"{name} per class needs at least 2 classes, got {len(numbers)}.")
    return numbers


def _plain(value: Any) -> Any:
    """A numpy or torch scalar as a Python number."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def counts_for(name: str, own: Sequence[float] | None, counts: tuple[float, ...] | None) -> Sequence[float]:
    """The class counts of the term `name`: its own, or else the head's."""
    known = counts if own is None else own
    if known is None:
        raise ValueError(
            f"{name} needs class counts: pass {name}(counts=[...]), or class_counts= to the head or the call."
        )
    return known


def positive_scale(name: str, value: Scale) -> Scale:
    """`value` as a float, if it is a finite number above zero, or a `Learnable` as it is."""
    return value if isinstance(value, Learnable) else checks.positive(name, value)


def check_smoothing(value: float) -> float:
    """`value`, if it is valid as torch's label smoothing."""
    return checks.within("label_smoothing", value, 0.0, 1.0)


def set_field(term: Term, name: str, value: Any) -> None:
    """Set a validated field of a frozen term, from its `__post_init__`."""
    object.__setattr__(term, name, value)


def scale_of_logits(name: str, normalize: bool, scale: Scale) -> Scale:
    """`scale`, if it is valid. It applies to cosines only: raw inner products carry their own."""
    checks.boolean(f"{name}'s normalize", normalize)
    if not normalize and scale != 1:
        raise ValueError(f"{name} of raw inner products takes no scale, got s={scale}. Add normalize=True.")
    return positive_scale(f"{name}'s scale", scale)
