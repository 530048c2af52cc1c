"""BNNeck: batch norm between the embeddings that a triplet loss sees and those that the prototypes see."""

from torch import nn


class BNNeck(nn.BatchNorm1d):
    """Batch norm without a shift (Luo et al. 2019, "Bag of tricks").

    A triplet loss asks for small distances, a softmax loss for directions; on one embedding they pull against
    each other. With the neck the first works before it and the second behind it, where features are centred
    and spread about the origin. The shift is left out so that boundaries between classes pass through it.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.bias.requires_grad = False
