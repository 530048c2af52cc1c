"""The generalization bound of the paper's eq. 2.7 as numbers, where its constants are known."""

import math
from typing import NamedTuple

import torch

from tammes._common import checks, tensor_checks
from tammes._common.types import Labels, PerSample


class MarginBound(NamedTuple):
    """The three terms of the right-hand side of eq. 2.7, each a mean over classes."""

    margin_loss: float  # fraction of samples whose margin is below gamma
    complexity: float  # of prototypes on frozen features; a trained backbone adds to it
    deviation: float  # of a sample from its distribution

    @property
    def total(self) -> float:
        """The bound on the error; vacuous if it is 1 or more."""
        return sum(self)


def margin_bound(margins: PerSample, labels: Labels, gamma: float) -> MarginBound:
    r"""The right-hand side of the paper's eq. 2.7, due to Cao et al. (2019), with one margin for all classes.

    .. math::
        \frac{1}{k} \sum_j \Bigl( \hat L_{\gamma, j} + \frac{4}{\gamma} \hat{\mathfrak R}_j
            + \varepsilon_j(\gamma) \Bigr), \qquad
        \varepsilon_j(\gamma) = \sqrt{\frac{\log \log_2(2 / \gamma) + \log n}{n_j}}

    :math:`\hat L_{\gamma, j}` is the share of the samples of class j whose margin is below gamma. The
    Rademacher complexity :math:`\hat{\mathfrak R}_j` of a network is unknown. Here it is that of unit
    prototypes on unit features that do not depend on the sample: the complexity of one inner product is at
    most :math:`1 / \sqrt{n_j}`, and that of a maximum at most the sum, which gives :math:`k / \sqrt{n_j}`.
    The bound holds with probability :math:`1 - n^{-5}` for a frozen backbone; for a trained one it leaves out
    the complexity of the backbone.

    Args:
        margins: Sample margins in cosines, as from `sample_margins`, of the samples trained on.
        labels: Their classes; k is the number of classes that occur.
        gamma: The margin, in (0, 1].

    Reference: K. Cao et al., Learning imbalanced datasets with label-distribution-aware margin loss, 2019.

    >>> margins, labels = torch.tensor([0.9, 0.2, 0.7, 0.8]), torch.tensor([0, 0, 1, 1])
    >>> margin_bound(margins, labels, gamma=0.5).margin_loss
    0.25
    """
    gamma = checks.positive("gamma", gamma)
    if gamma > 1:
        raise ValueError(f"gamma must be at most 1, the largest cosine, got {gamma:g}.")
    tensor_checks.check_per_sample("labels", labels, len(margins))
    tensor_checks.check_finite("margins", margins)
    _, classes, counts = labels.unique(return_inverse=True, return_counts=True)
    k, n, each = len(counts), len(labels), counts.double()
    below = torch.zeros(k, dtype=torch.float64, device=each.device)
    below.index_add_(0, classes, (margins < gamma).double())
    spread = math.log(max(math.log2(2 / gamma), 1.0)) + math.log(n)
    return MarginBound(
        margin_loss=float((below / each).mean()),
        complexity=float((4 / gamma * k / each.sqrt()).mean()),
        deviation=float((spread / each).sqrt().mean()),
    )
