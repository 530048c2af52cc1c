"""Prototype heads: the last layer and the loss, dense, streamed, sampled and sharded."""

from tammes.heads.checkpoint import load_head, save_head
from tammes.heads.clipping import clip_grad_norm_
from tammes.heads.prototype import PrototypeHead
from tammes.heads.row_optim import RowAdamW, RowSGD
from tammes.heads.sharded import ShardedPrototypeHead

__all__ = [
    "PrototypeHead",
    "RowAdamW",
    "RowSGD",
    "ShardedPrototypeHead",
    "clip_grad_norm_",
    "load_head",
    "save_head",
]
