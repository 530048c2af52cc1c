"""BNNeck: batch norm between the embeddings of the triplet loss and those of the prototypes."""

from torch import nn


class BNNeck(nn.BatchNorm1d):
    """Batch norm without a bias (Luo et al. 2019, "Bag of tricks").

    A triplet loss optimizes distances and a softmax loss directions, so they conflict on a shared embedding.
    The triplet loss applies before the neck and the softmax loss after it, where features are centered on the
    origin. There is no bias, so that decision boundaries pass through the origin.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.bias.requires_grad = False
