"""`Learnable`: a scale that is trained together with the prototypes."""

from dataclasses import dataclass

from tammes._common import checks


@dataclass(frozen=True)
class Learnable:
    """A scale that the head learns, from the starting value `value`.

    Pass it as the `scale` of any loss that has one. The head then holds the scale as a parameter,
    `head.scales["CosFace"]` for `CosFace`, and saves it with the prototypes. An objective that is called
    without a head uses the starting value.

    >>> from tammes.losses import parse
    >>> parse("CosFace(s=Learnable(16), m=0.35)").scale
    Learnable(16)
    """

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", checks.positive("Learnable's starting value", self.value))

    def __repr__(self) -> str:
        return f"Learnable({self.value:.17g})"


Scale = float | Learnable
"""The scale of a loss: a number, or one that the head learns."""
