"""SphereFace, also A-Softmax: the target angle multiplied by a margin (Liu et al. 2017)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from tammes import checks
from tammes.geometry.sphere import arc
from tammes.losses.objective import PerClassValue, SampleTerm, check_smoothing, per_class_margin, set_field
from tammes.losses.scores import Scores, softmax_loss
from tammes.losses.statistics import Need
from tammes.types import PerSample


def monotone_cosine(angle: PerSample) -> PerSample:
    r"""The cosine continued so that it falls for ever: :math:`(-1)^p \cos\phi - 2p`, p = floor(phi / pi).

    The plain cosine of a multiplied angle rises again past pi, and then cos(m t) <= cos t fails
    (erratum 9: it holds only for t <= 2 pi / (m + 1)).
    """
    turns = torch.floor(angle.detach() / math.pi)
    return (1 - 2 * torch.remainder(turns, 2)) * torch.cos(angle) - 2 * turns


def sphereface(scores: Scores, *, margin: float | PerSample, label_smoothing: float = 0.0) -> PerSample:
    r"""Softmax loss with the target angle multiplied by a real margin m >= 1.

    .. math::
        \ell_i = \operatorname{softplus}(\mathrm{rest}_i - s\,\nu_i\,\psi(m \theta_{i y_i}))

    with :math:`\psi` the `monotone_cosine` and :math:`\nu_i` the norms that turn a cosine into the
    similarity at hand: 1 for cosines, the feature's for the original A-Softmax, feature's times
    prototype's for L-Softmax.

    Reference: Liu et al., "SphereFace: deep hypersphere embedding for face recognition", 2017.
    """
    moved = scores.norms * monotone_cosine(margin * arc(scores.target / scores.norms))
    return softmax_loss(scores, scores.scale * moved, label_smoothing)


@dataclass(frozen=True, kw_only=True)
class SphereFace(SampleTerm):
    """`sphereface` as a term; `normalize_features=False` keeps the features' norms, as A-Softmax did."""

    text_name: ClassVar[str] = "SphereFace"

    scale: float
    margin: PerClassValue
    normalize_features: bool = True
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        set_field(self, "scale", checks.positive("SphereFace's scale", self.scale))
        set_field(self, "margin", per_class_margin("SphereFace's margin", self.margin, 1.0, 100.0))
        checks.boolean("normalize_features", self.normalize_features)
        set_field(self, "label_smoothing", check_smoothing(self.label_smoothing))

    @property
    def need(self) -> Need:
        space = "cosine" if self.normalize_features else "unit_prototypes"
        return Need(space, self.scale, mean=self.label_smoothing > 0, norms=True)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return sphereface(scores, margin=self.value("margin", own), label_smoothing=self.label_smoothing)
