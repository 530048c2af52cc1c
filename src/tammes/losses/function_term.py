"""`make_loss`: a function of `Scores` as a term, to try out an idea in one line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores

SampleFunction = Callable[[Scores], PerSample]
"""One loss per sample from the numbers in `Scores`."""


@dataclass(frozen=True, kw_only=True)
class FunctionTerm(SampleTerm):
    """A function of `Scores` as a term; see `make_loss`."""

    function: SampleFunction = field(repr=False)
    needs: Need = field(repr=False)

    @property
    def text_name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The function's name: readable, but not parsable."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def need(self) -> Need:
        return self.needs

    def class_values(self, counts: tuple[float, ...] | None) -> Mapping[str, tuple[float, ...]]:
        return {}

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return self.function(scores)


def make_loss(function: SampleFunction, *, needs: Need) -> FunctionTerm:
    """A term that computes `function(scores)`, one loss per sample, from the numbers that `needs` lists.

    It adds and scales like any other term and works in every head. It has no text form: for that, write a
    class and `register` it.

    >>> import torch
    >>> from tammes.losses import SampleMargin
    >>> hinge = make_loss(lambda s: (0.2 + s.hardest - s.target).clamp(min=0), needs=Need(hardest=True))
    >>> (hinge + 0.5 * SampleMargin())(torch.eye(3), torch.eye(3), torch.arange(3))
    tensor(-0.5000)
    """
    if not callable(function):
        raise TypeError(f"make_loss takes a function of Scores, got {function!r:.200}.")
    if not isinstance(needs, Need):
        raise TypeError(f"needs must be a Need, such as Need('cosine', 16.0), got {needs!r:.200}.")
    return FunctionTerm(function=function, needs=needs)
