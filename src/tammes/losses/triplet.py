"""Batch-hard triplet loss, computed from distances between embeddings without prototypes."""

import torch
from torch.nn.functional import relu, softplus

from tammes._common import checks
from tammes._common.types import Embeddings, Labels, PerSample


def batch_hard_triplet(embeddings: Embeddings, labels: Labels, *, margin: float | None = 0.3) -> PerSample:
    r"""Triplet loss with each sample's hardest positive and hardest negative (Hermans et al. 2017).

    .. math::
        \ell_i = \max(0,\; m + \max_{y_j = y_i} |z_i - z_j| - \min_{y_j \ne y_i} |z_i - z_j|)

    `margin=None` uses the soft margin instead, :math:`\log(1 + e^{x})` of the difference x without m. The
    only sample of a class is its own hardest positive, at distance 0. If the batch has a single class, the
    loss is 0.

    >>> z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> batch_hard_triplet(z, torch.tensor([0, 0, 1]), margin=1.5)
    tensor([0.5000, 0.2639, 0.0000])
    """
    if margin is not None:
        checks.within("margin", margin, 0.0, 1e6)
    distances = torch.cdist(embeddings, embeddings, compute_mode="donot_use_mm_for_euclid_dist")
    same = labels[:, None] == labels
    furthest = distances.masked_fill(~same, -torch.inf).amax(1)
    nearest = distances.masked_fill(same, torch.inf).amin(1)
    return softplus(furthest - nearest) if margin is None else relu(margin + furthest - nearest)
