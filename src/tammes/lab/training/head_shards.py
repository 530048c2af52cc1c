"""Convert between a full head and its shards under `torchrun`."""

import torch
import torch.distributed as dist
from torch import Tensor

from tammes.heads import PrototypeHead, ShardedPrototypeHead
from tammes.heads._beside_weight import copy_beside_weight
from tammes.lab.training.distributed import World


def shard(head: PrototypeHead, world: World) -> PrototypeHead:
    """The head to train: `head` itself, or with several processes this rank's shard of it."""
    if world.size == 1:
        return head
    shares = ShardedPrototypeHead(
        head.in_features,
        head.num_classes,
        head.objective,
        class_counts=head.class_counts,
        class_weight=head.class_weight,
        trainable=head.weight.requires_grad,
        centers=head.centers,
        sample_rate=None if head.sampler is None else head.sampler.rate,
        device=world.device,
    )
    with torch.no_grad():
        shares.weight.copy_(rows_here(head.weight, shares))
    copy_beside_weight(head, shares)
    return shares


def rows_here(whole: Tensor, head: PrototypeHead) -> Tensor:
    """The rows of this rank's classes."""
    first, last = head.class_range
    return whole[first:last]


def rows_of_all(own: Tensor, head: PrototypeHead) -> Tensor:
    """Gather the rows of all ranks' classes on every rank. All ranks must call it."""
    if not isinstance(head, ShardedPrototypeHead):
        return own
    whole = own.new_empty(head.num_classes, *own.shape[1:])
    first = 0
    for rank, size in enumerate(head.class_sizes):
        part = whole[first : first + size]
        if rank == dist.get_rank():
            part.copy_(own)
        if size:
            dist.broadcast(part, rank)
        first += size
    return whole
