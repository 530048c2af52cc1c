"""AdaCos: NormFace whose scale follows the training (Zhang et al. 2019)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tammes._common import checks
from tammes._common.types import PerSample, Scalar
from tammes.losses._engine.plan import Need, TermState
from tammes.losses.normface import normface
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores

LEAST_SCALE = 1.0
"""The formula gives 0 for two classes, and could turn negative where all wrong classes are far away."""


@dataclass(frozen=True, kw_only=True)
class AdaCos(SampleTerm):
    r"""`normface` with a scale that needs no tuning.

    .. math::
        s = \frac{\log B}{\cos \min(\pi / 4, \theta_{med})}, \qquad
        B = \frac{1}{n} \sum_i \sum_{j \ne y_i} e^{s' c_{ij}}

    :math:`\theta_{med}` is the median angle to the target in the batch. B and its scale s' are those of the
    step before, so that a step takes one pass over the classes; the authors take B from the batch itself, in
    a pass of its own. The first scale, and that of `dynamic=False` throughout, is the fixed one of the paper,
    :math:`\sqrt{2} \log(k - 1)`. No scale is below 1. The head keeps both statistics. A head that samples
    classes estimates B from the sample.

    Reference: Zhang et al., "AdaCos: adaptively scaling cosine logits for effectively learning deep face
    representations", 2019.
    """

    text_name: ClassVar[str] = "AdaCos"

    dynamic: bool = True

    def __post_init__(self) -> None:
        checks.boolean("AdaCos's dynamic", self.dynamic)

    @property
    def need(self) -> Need:
        return Need("cosine", "adaptive")

    def initial_state(self) -> Mapping[str, float]:
        # log_mean is log B - log(k - 1)
        return {"cosine": math.sqrt(0.5), "log_mean": 0.0} if self.dynamic else {}

    def next_state(self, state: TermState, batch: Any) -> TermState:
        return {**state, "cosine": batch.median_target().clamp(min=math.sqrt(0.5))}

    def adaptive_scale(self, state: TermState, num_classes: int) -> float | Scalar:
        logarithm = math.log(num_classes - 1)
        if not self.dynamic:
            return max(math.sqrt(2) * logarithm, LEAST_SCALE)
        return ((logarithm + state["log_mean"]) / state["cosine"]).clamp(min=LEAST_SCALE)

    def observe(self, state: TermState, readings: Sequence[tuple[Scores, PerSample]]) -> TermState:
        logs = torch.cat([scores.rest + share.log() for scores, share in readings])
        count = torch.stack([share.sum() for _, share in readings]).sum()
        wrong = math.log(readings[0][0].num_classes - 1)
        return {**state, "log_mean": torch.logsumexp(logs, 0) - count.log() - wrong}

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return normface(scores)
