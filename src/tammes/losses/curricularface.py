"""CurricularFace: hard wrong classes count more as training proceeds (Huang et al. 2020)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

import torch
from torch import Tensor

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need, TermState
from tammes.losses._engine.rival_logits import RivalMap, above
from tammes.losses._parameters import PerClassValue, per_class_margin, positive_scale, set_field
from tammes.losses.arcface import additive_angle, arcface
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores


@dataclass(frozen=True)
class _CurricularMap(RivalMap):
    r""":math:`c (t + c)` where c exceeds the threshold, c elsewhere."""

    thresholded: ClassVar[bool] = True
    reads_state: ClassVar[str | None] = "t"

    def value(self, similarity: Tensor, threshold: Any, parameter: Any) -> Tensor:
        return similarity * torch.where(similarity > threshold, parameter + similarity, 1.0)

    def value_and_slope(self, similarity: Tensor, threshold: Any, parameter: Any) -> tuple[Tensor, Tensor]:
        hard = above(similarity, threshold)
        factor = (similarity + (parameter - 1)).mul_(hard).add_(1)
        return similarity * factor, factor.addcmul_(hard, similarity)


@dataclass(frozen=True, kw_only=True)
class CurricularFace(SampleTerm):
    r"""ArcFace in which the cosines of hard wrong classes are re-weighted by a running statistic t.

    .. math::
        \ell_i = -\log \frac{e^{s \cos(\theta_{i y_i} + m)}}
            {e^{s \cos(\theta_{i y_i} + m)} + \sum_{j \ne y_i} e^{s N(t, c_{ij})}}, \qquad
        N(t, c) = \begin{cases} c & c \le \cos(\theta_{i y_i} + m) \\ c (t + c) & \text{otherwise} \end{cases}

    t is the running mean of the target cosine, in which a batch has the weight `momentum`; the head keeps it.
    `margin`, in radians, is one number or one per class. Past pi the target continues as `arcface` does with
    `beyond_pi="linear"`. N jumps at the threshold; the gradient ignores the jump, as the authors' does.

    Reference: Huang et al., "CurricularFace: adaptive curriculum learning loss for deep face recognition",
    2020.
    """

    text_name: ClassVar[str] = "CurricularFace"

    scale: Scale = 64.0
    margin: PerClassValue = 0.5
    momentum: float = 0.01

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, *, scale: Scale = 64.0, margin: PerClassValue = 0.5, momentum: float = 0.01
        ) -> None: ...
        @overload
        def __init__(self, *, s: Scale = 64.0, m: PerClassValue = 0.5, momentum: float = 0.01) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("CurricularFace's scale", self.scale))
        hint = "The margin is in radians: math.radians(28.6) is 0.5."
        margin = per_class_margin("CurricularFace's margin", self.margin, 0.0, math.pi / 2, hint)
        set_field(self, "margin", margin)
        set_field(self, "momentum", checks.within("CurricularFace's momentum", self.momentum, 0.0, 1.0))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, rival_map=_CurricularMap())

    def initial_state(self) -> Mapping[str, float]:
        return {"t": 0.0}

    def next_state(self, state: TermState, batch: Any) -> TermState:
        return {"t": self.momentum * batch.mean_target() + (1 - self.momentum) * state["t"]}

    def threshold(self, target: PerSample, **own: PerSample) -> PerSample:
        return additive_angle(target, self.value("margin", own), beyond_pi="plain")

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return arcface(scores, margin=self.value("margin", own))
