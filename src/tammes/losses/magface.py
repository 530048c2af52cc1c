"""MagFace: a margin that grows with the feature norm, and a reward for large norms (Meng et al. 2021)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import positive_scale, set_field
from tammes.losses.arcface import additive_angle
from tammes.losses.learnable import Scale
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores, softmax_loss


def magface(
    scores: Scores, *, norms: tuple[float, float], margins: tuple[float, float], strength: float
) -> PerSample:
    r"""ArcFace whose margin is linear in the feature norm a, plus a term that favors large norms.

    .. math::
        \ell_i = \operatorname{softplus}(\mathrm{rest}_i - s \cos(\theta_{i y_i} + m(a_i)))
            + \lambda_g \bigl(\tfrac{a_i}{u_a^2} + \tfrac{1}{a_i}\bigr)

    m(a) runs from the first to the second of `margins` as a runs through `norms`, :math:`[l_a, u_a]`; a is
    clipped to that range. Past pi the loss continues as `arcface` does with `beyond_pi="linear"`.

    Reference: Meng, Zhao, Huang, Zhou, "MagFace: a universal representation for face recognition and quality
    assessment", 2021.
    """
    low, high = norms
    norm = scores.feature_norms.clamp(low, high)
    margin = margins[0] + (margins[1] - margins[0]) / (high - low) * (norm - low)
    loss = softmax_loss(scores, scores.scale * additive_angle(scores.target, margin))
    return loss + strength * (norm / high**2 + 1 / norm)


@dataclass(frozen=True, kw_only=True)
class MagFace(SampleTerm):
    """ArcFace with a margin that grows with the feature norm, a measure of image quality.

    The margin, in radians, grows from `low_margin` to `high_margin` as the norm grows from `low_norm` to
    `high_norm`; `strength` weights the term that favors large norms. Formula and reference:
    `tammes.losses.functional.magface`.
    """

    text_name: ClassVar[str] = "MagFace"

    scale: Scale = 64.0
    low_norm: float = 10.0
    high_norm: float = 110.0
    low_margin: float = 0.45
    high_margin: float = 0.8
    strength: float = 35.0

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            *,
            scale: Scale = 64.0,
            low_norm: float = 10.0,
            high_norm: float = 110.0,
            low_margin: float = 0.45,
            high_margin: float = 0.8,
            strength: float = 35.0,
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            s: Scale = 64.0,
            low_norm: float = 10.0,
            high_norm: float = 110.0,
            low_margin: float = 0.45,
            high_margin: float = 0.8,
            strength: float = 35.0,
        ) -> None: ...
        def __init__(self, **parameters: Any) -> None: ...

    def __post_init__(self) -> None:
        set_field(self, "scale", positive_scale("MagFace's scale", self.scale))
        for name in ("low_norm", "high_norm"):
            set_field(self, name, checks.positive(f"MagFace's {name}", getattr(self, name)))
        hint = "Margins are in radians: math.radians(28.6) is 0.5."
        for name in ("low_margin", "high_margin"):
            value = checks.within(f"MagFace's {name}", getattr(self, name), 0.0, math.pi / 2, hint)
            set_field(self, name, value)
        set_field(self, "strength", checks.within("MagFace's strength", self.strength, 0.0, 1e6))
        for kind in ("norm", "margin"):
            low, high = getattr(self, f"low_{kind}"), getattr(self, f"high_{kind}")
            if low > high or (kind == "norm" and low == high):
                raise ValueError(
                    f"MagFace's low_{kind} must be below its high_{kind}, got {low:g} and {high:g}."
                )

    @property
    def need(self) -> Need:
        return Need("cosine", self.scale, feature_norms=True)

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return magface(
            scores,
            norms=(self.low_norm, self.high_norm),
            margins=(self.low_margin, self.high_margin),
            strength=self.strength,
        )
