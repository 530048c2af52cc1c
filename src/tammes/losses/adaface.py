"""AdaFace: a margin that follows image quality, read off the feature norm (Kim et al. 2022)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

import torch
from torch import Tensor

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.geometry.sphere import sine
from tammes.losses._engine.plan import Need, TermState
from tammes.losses._parameters import positive_scale, set_field
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores, softmax_loss

NORMS = (0.001, 100.0)
"""Feature norms are clipped to this range, as in the authors' code."""


def adaface(scores: Scores, *, margin: float, concentration: float) -> PerSample:
    r"""Softmax loss with an angular and an additive margin that depend on the feature norm.

    .. math::
        \ell_i = \operatorname{softplus}(\mathrm{rest}_i - s (\cos(\theta_{i y_i} + g_{angle}) - g_{add})),
        \quad g_{angle} = -m \hat{z}_i, \quad g_{add} = m \hat{z}_i + m

    where :math:`\hat{z}_i` is the norm, standardized by its running mean and standard deviation, times h =
    `concentration`, clipped to [-1, 1]. No gradient flows through it. The angle is clipped to [0, pi].

    Reference: Kim, Jain, Liu, "AdaFace: quality adaptive margin for face recognition", 2022.
    """
    mean, std = scores.state["mean"], scores.state["std"]
    norms = scores.feature_norms.detach().clamp(*NORMS)
    quality = ((norms - mean) / (std + 1e-3) * concentration).clamp(-1, 1)
    moved = clipped_angle(scores.target, -margin * quality) - (margin + margin * quality)
    return softmax_loss(scores, scores.scale * moved)


def clipped_angle(cosine: PerSample, angle: PerSample) -> PerSample:
    r""":math:`\cos(\theta + a)` from :math:`\cos \theta` for any a, the angle clipped to [0, pi]."""
    turned = cosine * torch.cos(angle) - sine(cosine) * torch.sin(angle)
    turned = torch.where((angle < 0) & (cosine > torch.cos(angle)), 1.0, turned)
    return torch.where((angle > 0) & (cosine < -torch.cos(angle)), -1.0, turned)


@dataclass(frozen=True, kw_only=True)
class AdaFace(SampleTerm):
    """Softmax loss with a margin that adapts to the feature norm, a measure of image quality.

    The head keeps the running mean and standard deviation of the feature norms; `momentum` is the weight of
    the current batch in them. Formula and reference: `tammes.losses.functional.adaface`.
    """

    text_name: ClassVar[str] = "AdaFace"

    scale: Scale = 64.0
    margin: float = 0.4
    concentration: float = 0.333
    momentum: float = 0.01

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            scale: Scale = 64.0,
            margin: float = 0.4,
            concentration: float = 0.333,
            momentum: float = 0.01,
        ) -> None: ...
        @overload
        def __init__(
            self, *, s: Scale = 64.0, m: float = 0.4, concentration: float = 0.333, momentum: float = 0.01
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("AdaFace's scale", self.scale))
        hint = "The margin is in radians: math.radians(22.9) is 0.4."
        set_field(self, "margin", checks.within("AdaFace's margin", self.margin, 0.0, math.pi / 2, hint))
        for name, high in (("concentration", 100.0), ("momentum", 1.0)):
            set_field(self, name, checks.within(f"AdaFace's {name}", getattr(self, name), 0.0, high))

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, feature_norms=True)

    def initial_state(self) -> Mapping[str, float]:
        return {"mean": 20.0, "std": 100.0}

    def next_state(self, state: TermState, batch: Any) -> TermState:
        norms = batch._replace(feature_norms=batch.feature_norms.clamp(*NORMS))
        return {
            name: _moved(state[name], new, self.momentum)
            for name, new in zip(("mean", "std"), norms.mean_and_std_of_norms(), strict=True)
        }

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return adaface(scores, margin=self.margin, concentration=self.concentration)


def _moved(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    return momentum * new + (1 - momentum) * old
