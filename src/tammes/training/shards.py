"""From a head in one piece to its shards under `torchrun`, and back."""

import torch
import torch.distributed as dist
from torch import Tensor

from tammes.heads import PrototypeHead, ShardedPrototypeHead
from tammes.training.distributed import World


def shard(head: PrototypeHead, world: World) -> PrototypeHead:
    """The head that trains: `head` itself, or with several processes this one's share of its classes."""
    if world.size == 1:
        return head
    shares = ShardedPrototypeHead(
        head.in_features,
        head.num_classes,
        head.objective,
        class_counts=head.class_counts,
        class_weight=head.class_weight,
        trainable=head.weight.requires_grad,
        sample_rate=None if head.sampler is None else head.sampler.rate,
        device=world.device,
    )
    with torch.no_grad():
        shares.weight.copy_(rows_here(head.weight, shares))
    same_draws(head, shares)
    return shares


def same_draws(head: PrototypeHead, other: PrototypeHead) -> None:
    """Let `other` draw next what `head` would, where they sample classes."""
    if head.sampler is not None and other.sampler is not None:
        other.sampler.set_extra_state(head.sampler.get_extra_state())
        other.sampler.sums.forget()


def rows_here(whole: Tensor, head: PrototypeHead) -> Tensor:
    """The rows of this process's classes."""
    first, last = head.class_range
    return whole[first:last]


def rows_of_all(own: Tensor, head: PrototypeHead) -> Tensor:
    """The rows of all processes' classes, on each; all must call it together."""
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
