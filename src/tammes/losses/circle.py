"""Circle loss of class labels: similarities weighted by their distance from the optimum (Sun et al. 2020)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from torch import Tensor
from torch.nn.functional import relu

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._engine.rival_logits import RivalMap
from tammes.losses._parameters import positive_scale, set_field
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores, softmax_loss


@dataclass(frozen=True)
class _CircleMap(RivalMap):
    r""":math:`[c + m]_+ (c - m)`, the first factor taken as a constant by the gradient."""

    margin: float

    def value(self, similarity: Tensor, threshold: Any, parameter: Any) -> Tensor:
        return relu(similarity.detach() + self.margin) * (similarity - self.margin)

    def value_and_slope(self, similarity: Tensor, threshold: Any, parameter: Any) -> tuple[Tensor, Tensor]:
        weight = (similarity + self.margin).clamp_(min=0)
        return (similarity - self.margin).mul_(weight), weight


def circle(scores: Scores, *, margin: float) -> PerSample:
    r"""Circle loss of a sample and all prototypes.

    .. math::
        \ell_i = \operatorname{softplus}\Bigl(\log \sum_{j \ne y_i} e^{s [c_{ij} + m]_+ (c_{ij} - m)}
            - s [1 + m - c_{i y_i}]_+ (c_{i y_i} - 1 + m)\Bigr)

    The gradient takes the weights in brackets as constants, as the paper and PML do. `scores.rest` already
    contains the wrong classes.

    Reference: Sun et al., "Circle loss: a unified perspective of pair similarity optimization", 2020.
    """
    weight = relu(1 + margin - scores.target.detach())
    return softmax_loss(scores, scores.scale * weight * (scores.target - (1 - margin)))


@dataclass(frozen=True, kw_only=True)
class Circle(SampleTerm):
    """Circle loss of samples and prototypes: logits far from their optimum get larger weights.

    `scale` (s) is gamma in its paper. Formula and reference: `tammes.losses.functional.circle`.
    """

    text_name: ClassVar[str] = "Circle"

    scale: Scale = 256.0
    margin: float = 0.25

    if TYPE_CHECKING:

        @overload
        def __init__(self, *, scale: Scale = 256.0, margin: float = 0.25) -> None: ...
        @overload
        def __init__(self, *, s: Scale = 256.0, m: float = 0.25) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("Circle's scale", self.scale))
        set_field(self, "margin", checks.within("Circle's margin", self.margin, 0.0, 1.0))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, rival_map=_CircleMap(self.margin))

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return circle(scores, margin=self.margin)
