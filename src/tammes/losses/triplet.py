"""The triplet loss with the hardest examples of the batch: distances of embeddings, no prototypes."""

import torch
from torch.nn.functional import relu, softplus

from tammes import checks
from tammes.types import Embeddings, Labels, PerSample


def batch_hard_triplet(embeddings: Embeddings, labels: Labels, *, margin: float | None = 0.3) -> PerSample:
    r"""Each sample's furthest of its own class against its nearest of another (Hermans et al. 2017).

    .. math::
        \ell_i = \max(0,\; m + \max_{y_j = y_i} |z_i - z_j| - \min_{y_j \ne y_i} |z_i - z_j|)

    With `margin=None` the soft margin, :math:`\log(1 + e^{x})` of the difference without m. A sample alone in
    its class is its own furthest, at distance 0; where the batch has one class the loss is 0.

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
