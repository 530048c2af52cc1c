"""Prototype heads: the last layer and the loss, dense, streamed, sampled and sharded."""

from tammes.heads.prototype import PrototypeHead
from tammes.heads.row_optim import RowAdamW, RowSGD

__all__ = ["PrototypeHead", "RowAdamW", "RowSGD"]
