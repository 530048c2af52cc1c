"""A head with the signature of pytorch-metric-learning's losses."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tammes._common.types import Embeddings, PerSample, Scalar, Similarities
from tammes.heads import PrototypeHead

IndicesTuple = Sequence[Tensor]
"""What a miner returns: indices of anchors, positives, negatives; three or four tensors."""


class MetricLoss(nn.Module):
    """A `PrototypeHead` that works as a loss in pytorch-metric-learning's trainers and loops.

    A miner's tuple becomes sample weights, as in their own classification losses: the number of times that a
    sample occurs in it, divided by the largest such number. Reference embeddings raise an error, as they do
    there.

    >>> loss = MetricLoss(PrototypeHead(8, 3, "ArcFace(s=8, m=0.2)"))
    >>> loss(torch.randn(5, 8), torch.tensor([0, 1, 2, 1, 0])).shape
    torch.Size([])
    """

    def __init__(self, head: PrototypeHead) -> None:
        super().__init__()
        self.head = head

    def forward(
        self,
        embeddings: Embeddings,
        labels: Tensor | None = None,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Scalar:
        """The loss of a batch, weighted by the output of a miner."""
        if labels is None:
            raise ValueError("MetricLoss needs labels: it compares embeddings with prototypes of classes.")
        if ref_emb is not None or ref_labels is not None:
            raise ValueError(
                "MetricLoss compares embeddings with prototypes, so it takes no ref_emb or ref_labels."
            )
        weights = miner_weights(indices_tuple, embeddings)
        if weights is None:
            return self.head(embeddings, labels)
        return self.head(embeddings, labels, sample_weight=weights, reduction="none").mean()

    def get_logits(self, embeddings: Embeddings) -> Similarities:
        """Logits without margins, (n, k)."""
        return self.head.logits(embeddings)


def miner_weights(indices_tuple: IndicesTuple | None, embeddings: Embeddings) -> PerSample | None:
    """How often each sample was mined, relative to the most frequent one; None if nothing was."""
    if indices_tuple is None or all(len(indices) == 0 for indices in indices_tuple):
        return None
    mined = torch.cat([indices.to(embeddings.device) for indices in indices_tuple])
    counts = torch.bincount(mined, minlength=len(embeddings))
    return (counts / counts.max()).to(embeddings.dtype)
