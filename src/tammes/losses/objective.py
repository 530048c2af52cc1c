"""Objectives are values: terms that add, scale and compare; without tensors, so hashable and printable."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tammes import checks
from tammes.losses.scores import Scores, Space
from tammes.losses.statistics import Need, Plan
from tammes.types import Embeddings, PerSample, Prototypes, Scalar

SHORT_NAMES = {"scale": "s", "margin": "m"}
"""Fields that the text form abbreviates."""

PerClassValue = float | Sequence[float]
"""One number for all classes, or one for each; terms keep the latter as a tuple."""


class Objective:
    """A weighted sum of terms. `a + 0.5 * b`, `-a`, `a / 2`, `sum([...])`; call it for the loss."""

    @property
    def terms(self) -> "tuple[tuple[float, Term], ...]":
        """Coefficients and terms, in the order written."""
        raise NotImplementedError

    def __call__(self, embeddings: Embeddings, weight: Prototypes, labels: Any, **options: Any) -> Tensor:
        """The loss of `embeddings` against prototypes `weight`: the functional twin of `PrototypeHead`.

        `options` are those of :func:`tammes.losses.evaluate.loss`.

        >>> z, w, y = torch.eye(3), torch.eye(3), torch.arange(3)
        >>> from tammes.losses import SampleMargin
        >>> (0.5 * SampleMargin())(z, w, y)
        tensor(-0.5000)
        """
        from tammes.losses.evaluate import loss

        return loss(self, embeddings, weight, labels, **options)

    def __str__(self) -> str:
        from tammes.losses.text import text_of

        return text_of(self)

    def __add__(self, other: "Objective | int") -> "Objective":
        if isinstance(other, int) and other == 0:  # so that `sum` may start from 0
            return self
        if not isinstance(other, Objective):
            return NotImplemented
        return combine([*self.terms, *other.terms])

    __radd__ = __add__

    def __mul__(self, factor: float) -> "Objective":
        if isinstance(factor, Objective):
            raise TypeError(
                "An objective scales with a number, not with another objective; add them instead."
            )
        factor = checks.finite("The coefficient of an objective", factor)
        return combine([(factor * coefficient, term) for coefficient, term in self.terms])

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> "Objective":
        if checks.finite("The divisor of an objective", divisor) == 0:
            raise ValueError("An objective cannot be divided by 0.")
        return self * (1 / divisor)

    def __neg__(self) -> "Objective":
        return -1.0 * self

    def __sub__(self, other: "Objective") -> "Objective":
        return self + (-other)


@dataclass(frozen=True, kw_only=True)
class Term(Objective):
    """One loss or regulariser: a frozen dataclass whose fields are its parameters."""

    text_name: ClassVar[str]
    is_loss: ClassVar[bool] = True  # regularisers leave the head's logits to the losses

    @property
    def terms(self) -> "tuple[tuple[float, Term], ...]":
        return ((1.0, self),)

    @functools.cached_property
    def text(self) -> str:
        """`str(self)`, made once: margins per class may be many."""
        return str(self)

    @property
    def need(self) -> Need:
        """What the term reads of a batch."""
        raise NotImplementedError

    def class_values(self, counts: tuple[float, ...] | None) -> Mapping[str, tuple[float, ...]]:
        """Parameters that differ from class to class; `counts` are the head's class counts."""
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in fields if isinstance(value, tuple)}


class SampleTerm(Term):
    """A term with one value per sample."""

    def value(self, name: str, own: Mapping[str, PerSample]) -> Any:
        """A field: the number for all classes, or each sample's own from `own`."""
        return own.get(name, getattr(self, name))

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        """The loss of each sample; `own` holds the class-wise parameters of its label."""
        raise NotImplementedError


class PrototypeTerm(Term):
    """A term on the prototypes alone."""

    is_loss: ClassVar[bool] = False

    def of_prototypes(self, statistics: Any) -> Scalar:
        """The value for the prototypes that `statistics` describes."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Objective):
    """Several terms; equal to another sum of the same terms and coefficients in any order."""

    parts: tuple[tuple[float, Term], ...]

    @property
    def terms(self) -> tuple[tuple[float, Term], ...]:
        return self.parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Objective) and dict(_by_term(self)) == dict(_by_term(other))

    def __hash__(self) -> int:
        return hash(frozenset(_by_term(self)))

    def __repr__(self) -> str:
        return " + ".join(f"{coefficient:g} * {term!r}" for coefficient, term in self.parts)


def _by_term(objective: Objective) -> list[tuple[Term, float]]:
    return [(term, coefficient) for coefficient, term in objective.terms]


def combine(parts: Iterable[tuple[float, Term]]) -> Objective:
    """The objective with these parts: equal terms joined, terms of coefficient 0 left out."""
    joined: dict[Term, float] = {}
    for coefficient, term in parts:
        joined[term] = joined.get(term, 0.0) + coefficient
    kept = tuple(
        (checks.finite("The coefficient of an objective", coefficient), term)
        for term, coefficient in joined.items()
        if coefficient
    )
    if not kept:
        raise ValueError("No term is left of this objective: every coefficient is 0. Leave it out instead.")
    if len(kept) == 1 and kept[0][0] == 1.0:
        return kept[0][1]
    return Sum(kept)


def first_loss(objective: Objective) -> Term:
    """The term that gives the head its logits: the first loss, or the first term when there is none."""
    terms = [term for _, term in objective.terms]
    return next((term for term in terms if term.is_loss), terms[0])


def logit_space(objective: Objective) -> tuple[Space, float]:
    """Space and scale of the head's logits."""
    need = first_loss(objective).need
    return need.space, 1.0 if need.scale is None else need.scale


def plan_of(objective: Objective) -> Plan:
    """What a head must compute for all terms of `objective`."""
    return Plan.of((term.need for _, term in objective.terms), logit_space(objective)[0])


def per_class_margin(
    name: str, value: PerClassValue, low: float, high: float, hint: str = ""
) -> PerClassValue:
    """A margin, or a sequence of one per class as a tuple, each in [low, high]."""
    value = _plain(value)
    if isinstance(value, int | float):
        return checks.within(name, value, low, high, hint)
    return tuple(
        checks.within(f"{name}[{j}]", margin, low, high, hint)
        for j, margin in enumerate(one_per_class(name, value))
    )


def one_per_class(name: str, values: Any) -> tuple[float, ...]:
    """A sequence of finite numbers, one for each of at least two classes, as a tuple."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a number or a sequence with one for each class, got {values!r}.")
    numbers = tuple(checks.finite(f"{name}[{j}]", _plain(value)) for j, value in enumerate(values))
    if len(numbers) < 2:
        raise ValueError(f"{name} per class needs at least 2 classes, got {len(numbers)}.")
    return numbers


def _plain(value: Any) -> Any:
    """A number of numpy's or torch's as one of Python's."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def set_field(term: Term, name: str, value: Any) -> None:
    """Store a checked field of a frozen term, from its `__post_init__`."""
    object.__setattr__(term, name, value)


def check_smoothing(value: float) -> float:
    """`value`, if torch would take it as label smoothing."""
    return checks.within("label_smoothing", value, 0.0, 1.0)


def cosine_of(value: float | Tensor) -> float | Tensor:
    """Cosine of a number or a tensor, as the same."""
    return torch.cos(value) if isinstance(value, Tensor) else math.cos(value)


def sine_of(value: float | Tensor) -> float | Tensor:
    """Sine of a number or a tensor, as the same."""
    return torch.sin(value) if isinstance(value, Tensor) else math.sin(value)
