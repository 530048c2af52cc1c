"""SphereFace, also known as A-Softmax: the target angle times a margin (Liu et al. 2017)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

import torch

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.geometry.sphere import arc
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import (
    PerClassValue,
    check_smoothing,
    per_class_margin,
    positive_scale,
    set_field,
)
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores, softmax_loss


def monotone_cosine(angle: PerSample) -> PerSample:
    r"""The cosine, continued to decrease monotonically: :math:`(-1)^p \cos\phi - 2p`, p = floor(phi / pi).

    The plain cosine of a multiplied angle increases again past pi, where cos(m t) <= cos t eventually fails
    (erratum 9: it holds only for t <= 2 pi / (m + 1)).
    """
    turns = torch.floor(angle.detach() / math.pi)
    return (1 - 2 * torch.remainder(turns, 2)) * torch.cos(angle) - 2 * turns


def sphereface(scores: Scores, *, margin: float | PerSample, label_smoothing: float = 0.0) -> PerSample:
    r"""Softmax loss with the target angle multiplied by a real margin m >= 1.

    .. math::
        \ell_i = \operatorname{softplus}(\mathrm{rest}_i - s\,\nu_i\,\psi(m \theta_{i y_i}))

    where :math:`\psi` is `monotone_cosine` and :math:`\nu_i` the factor between cosine and similarity: 1 for
    cosines, the feature norm for the original A-Softmax, feature norm times prototype norm for L-Softmax.

    Reference: Liu et al., "SphereFace: deep hypersphere embedding for face recognition", 2017.
    """
    moved = scores.norms * monotone_cosine(margin * arc(scores.target / scores.norms))
    return softmax_loss(scores, scores.scale * moved, label_smoothing)


@dataclass(frozen=True, kw_only=True)
class SphereFace(SampleTerm):
    """Softmax loss over cosines times `scale` (s), with the angle of the true class times `margin` (m).

    `normalize_features=False` keeps the feature norms, as A-Softmax does. Formula and reference:
    `tammes.losses.functional.sphereface`.
    """

    text_name: ClassVar[str] = "SphereFace"

    scale: Scale
    margin: PerClassValue
    normalize_features: bool = True
    label_smoothing: float = 0.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            scale: Scale,
            margin: PerClassValue,
            normalize_features: bool = True,
            label_smoothing: float = 0.0,
        ) -> None: ...
        @overload
        def __init__(
            self, *, s: Scale, m: PerClassValue, normalize_features: bool = True, label_smoothing: float = 0.0
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("SphereFace's scale", self.scale))
        set_field(self, "margin", per_class_margin("SphereFace's margin", self.margin, 1.0, 100.0))
        checks.boolean("normalize_features", self.normalize_features)
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        space = "cosine" if self.normalize_features else "unit_prototypes"
        return Need(space, self.scale, smoothing=self.label_smoothing > 0, norms=True)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return sphereface(scores, margin=self.value("margin", own), label_smoothing=self.label_smoothing)
