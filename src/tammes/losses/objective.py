"""Objectives: weighted sums of terms that can be added, scaled, compared, hashed and printed."""

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from tammes._common import checks
from tammes._common.types import Embeddings, PerSample, Prototypes, Scalar
from tammes.losses._engine.labels import IGNORE_INDEX, MixedLabels
from tammes.losses._engine.plan import Need, TermState
from tammes.losses.scores import Scores

SHORT_NAMES = {"scale": "s", "margin": "m"}
"""Short names of fields: the text form prints them; constructors and the text form accept either."""


class Objective:
    """A weighted sum of terms. `a + 0.5 * b`, `-a`, `a / 2`, `sum([...])`; call it for the loss."""

    __array_ufunc__ = None  # numpy leaves `np.float32(0.5) * objective` to the objective

    @property
    def weighted_terms(self) -> "tuple[tuple[float, Term], ...]":
        """Coefficients and terms, in the order written."""
        raise NotImplementedError

    def __call__(
        self,
        embeddings: Embeddings,
        weight: Prototypes,
        labels: Tensor | MixedLabels,
        *,
        class_counts: Tensor | Sequence[float] | None = None,
        class_weight: Tensor | None = None,
        sample_weight: Tensor | None = None,
        ignore_index: int = IGNORE_INDEX,
        reduction: Literal["mean", "none"] = "mean",
        check: bool = False,
    ) -> Tensor:
        """The loss of `embeddings` against prototypes `weight`: the functional form of `PrototypeHead`.

        See :func:`tammes.losses._engine.batch_loss.loss` for the options.

        >>> import torch
        >>> z, w, y = torch.eye(3), torch.eye(3), torch.arange(3)
        >>> from tammes.losses import SampleMargin
        >>> (0.5 * SampleMargin())(z, w, y)
        tensor(-0.5000)
        """
        from tammes.losses._engine.batch_loss import loss

        return loss(
            self,
            embeddings,
            weight,
            labels,
            class_counts=class_counts,
            class_weight=class_weight,
            sample_weight=sample_weight,
            ignore_index=ignore_index,
            reduction=reduction,
            check=check,
        )

    def __str__(self) -> str:
        from tammes.losses._text import text_of

        return text_of(self)

    def __add__(self, other: "Objective | int") -> "Objective":
        if isinstance(other, int) and other == 0:  # so that `sum` may start from 0
            return self
        if not isinstance(other, Objective):
            return NotImplemented
        return combine([*self.weighted_terms, *other.weighted_terms])

    __radd__ = __add__

    def __mul__(self, factor: float) -> "Objective":
        if isinstance(factor, Objective):
            raise TypeError(
                "An objective can be multiplied by a number, not by another objective. Did you mean +?"
            )
        factor = checks.finite("The coefficient of an objective", factor)
        return combine([(factor * coefficient, term) for coefficient, term in self.weighted_terms])

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> "Objective":
        if checks.finite("The divisor of an objective", divisor) == 0:
            raise ValueError("An objective cannot be divided by 0.")
        return self * (1 / divisor)

    def __neg__(self) -> "Objective":
        return -1.0 * self

    def __sub__(self, other: "Objective") -> "Objective":
        return self + (-other)


class _TermType(type):
    """The class of term classes: their constructors take short names, `CosFace(s=64, m=0.35)`, too."""

    if not TYPE_CHECKING:  # type checkers read the overloads of each `__init__` instead

        def __call__(cls, *args: Any, **parameters: Any) -> Any:
            for field in getattr(cls, "__dataclass_fields__", {}):
                short = SHORT_NAMES.get(field)
                if short in parameters:
                    if field in parameters:
                        raise TypeError(
                            f"{cls.__name__} takes {short} or {field}, not both "
                            f"(dataclasses.replace takes {field})."
                        )
                    parameters[field] = parameters.pop(short)
            return super().__call__(*args, **parameters)

        def __radd__(cls, other: Any) -> Any:
            raise TypeError(f"{cls.__name__} is a class, not a term: write {cls.__name__}().")

        __add__ = __mul__ = __rmul__ = __radd__

        @property
        def __signature__(cls) -> inspect.Signature:
            """That of `__init__`, for `help` and editors, which would show `__call__`'s otherwise."""
            _, *parameters = inspect.signature(cls.__init__).parameters.values()
            return inspect.Signature(parameters)


@dataclass(frozen=True, kw_only=True)
class Term(Objective, metaclass=_TermType):
    """One loss or regularizer: a frozen dataclass whose fields are its parameters.

    `text_name` is the name that the text form prints; `parse` reads it and the name of the class.
    """

    text_name: ClassVar[str]
    is_loss: ClassVar[bool] = True  # regularizers do not define the head's logits

    @property
    def weighted_terms(self) -> "tuple[tuple[float, Term], ...]":
        return ((1.0, self),)

    @property
    def need(self) -> Need:
        """The batch statistics that the term reads."""
        raise NotImplementedError

    def class_values(self, counts: tuple[float, ...] | None) -> Mapping[str, tuple[float, ...]]:
        """Per-class parameters by name; `counts` are the head's class counts."""
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in fields if isinstance(value, tuple)}


class SampleTerm(Term):
    """A term with one value per sample.

    Define `need` and `per_sample`. Losses with running statistics also define `initial_state`, and
    `next_state` or `observe`, which run before and after the pass over the classes; the head keeps the
    statistics, saves them with its checkpoint and passes them on in `scores.state`. Losses whose `rival_map`
    compares with a threshold define `threshold`, those with an adaptive scale `adaptive_scale`.
    """

    def value(self, name: str, own: Mapping[str, PerSample]) -> Any:
        """A parameter: one number for all classes, or each sample's value from `own`."""
        return own.get(name, getattr(self, name))

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        """The loss of each sample; `own` holds the per-class parameters of its label."""
        raise NotImplementedError

    def initial_state(self) -> Mapping[str, float]:
        """Running statistics by name, with their starting values."""
        return {}

    def next_state(self, state: TermState, batch: Any) -> TermState:
        """The running statistics with `batch` (a `BatchSummary`) included; called once per training step."""
        return state

    def observe(self, state: TermState, readings: "Sequence[tuple[Scores, PerSample]]") -> TermState:
        """The running statistics after the pass over the classes, for the next step.

        `readings` has the scores of each label of the samples, with its share in each sample: 0 for ignored
        rows, 1 for class indices.
        """
        return state

    def adaptive_scale(self, state: TermState, num_classes: int) -> float | Scalar:
        """The scale of this step, for `Need(scale="adaptive")`."""
        raise NotImplementedError

    def threshold(self, target: PerSample, **own: PerSample) -> PerSample:
        """The threshold of each sample for `need.rival_map`, from its target cosine."""
        raise NotImplementedError


class PrototypeTerm(Term):
    """A term on the prototypes alone."""

    is_loss: ClassVar[bool] = False

    def of_prototypes(self, statistics: Any) -> Scalar:
        """The value of the term, from the prototype statistics."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Objective):
    """A sum of several terms; the order of terms does not matter for equality."""

    parts: tuple[tuple[float, Term], ...]

    @property
    def weighted_terms(self) -> tuple[tuple[float, Term], ...]:
        return self.parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Objective) and dict(_by_term(self)) == dict(_by_term(other))

    def __hash__(self) -> int:
        return hash(frozenset(_by_term(self)))

    def __repr__(self) -> str:
        return " + ".join(f"{coefficient:g} * {term!r}" for coefficient, term in self.parts)


def _by_term(objective: Objective) -> list[tuple[Term, float]]:
    return [(term, coefficient) for coefficient, term in objective.weighted_terms]


def combine(parts: Iterable[tuple[float, Term]]) -> Objective:
    """The objective with these parts: equal terms are merged, zero coefficients dropped."""
    joined: dict[Term, float] = {}
    for coefficient, term in parts:
        joined[term] = joined.get(term, 0.0) + coefficient
    kept = tuple(
        (checks.finite("The coefficient of an objective", coefficient), term)
        for term, coefficient in joined.items()
        if coefficient
    )
    if not kept:
        raise ValueError("Every coefficient of the objective is 0. Keep at least one term.")
    if len(kept) == 1 and kept[0][0] == 1.0:
        return kept[0][1]
    return Sum(kept)
