r"""Collectives over the ranks of a process group, each with its gradient stated.

What the ranks minimise together is F, the mean over ranks of what each calls `backward` on. A tensor is
*replicated* when every rank holds the same values, and then each holds the whole gradient of F by it; it is
*partial* when a rank's gradient counts only what went through its own classes, and F's is the sum.

| function | forward | gradient |
|---|---|---|
| `gather_rows` | all-gather | partial: summed over ranks, each gets its rows (reduce-scatter), times W |
| `once` | identity, for a gathered tensor in a replicated computation | 1/W on each rank: counted once |
| `sum_over_ranks` | all-reduce to a replicated sum | as it is, to every summand |
| `mean_gradient` | identity, on the replicated loss | mean over ranks |
| `own_rows` | a rank's rows of a replicated tensor | all-gather, over W |
| `own_rows_of_columns` | all-to-all: (N, k_r) to (n_r, k) | all-to-all back, over W |

W times the exact gradient is what an embedding must get for DDP's mean over the backbone's gradients to be
exact, whatever the sizes of the local batches. All are differentiable once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

Group = Any
"""A `torch.distributed.ProcessGroup`."""

Sizes = Sequence[int]
"""Rows that each rank brings, in the order of ranks."""


def gather_numbers(numbers: Sequence[int], group: Group, device: torch.device) -> list[list[int]]:
    """The integers of every rank; as many on each."""
    own = torch.tensor([numbers], dtype=torch.int64, device=device)
    return all_gather(own, [1] * dist.get_world_size(group), group).tolist()


def gather_texts(text: str, group: Group, device: torch.device) -> list[str]:
    """The text of every rank."""
    own = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8).to(device)
    sizes = [size for (size,) in gather_numbers([len(own)], group, device)]
    parts = all_gather(own, sizes, group).split(sizes)
    return [bytes(part.tolist()).decode().strip("\0") for part in parts]


def all_gather(rows: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """The rows of all ranks, one rank's after the other's; without a gradient."""
    most = max(sizes)
    padding = rows.new_zeros(most - len(rows), *rows.shape[1:])
    padded = torch.cat([rows, padding]) if len(padding) else rows.contiguous()
    gathered = rows.new_empty(len(sizes) * most, *rows.shape[1:])
    dist.all_gather_into_tensor(gathered, padded, group=group)
    if min(sizes) == most:
        return gathered
    return torch.cat([part[:size] for part, size in zip(gathered.split(most), sizes, strict=True)])


def reduce_scatter(rows: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """Rows summed over ranks, each rank with its own part; in the order of ranks, so the same every time."""
    own = sizes[dist.get_rank(group)]
    received = rows.new_empty(len(sizes) * own, *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), [own] * len(sizes), list(sizes), group=group)
    return received.view(len(sizes), own, *rows.shape[1:]).sum(0)


def reduce(values: Tensor, operation: str, group: Group) -> Tensor:
    """`values` over all ranks by "MAX", "MIN" or "SUM"; without a gradient."""
    values = values.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(values, getattr(dist.ReduceOp, operation), group=group)
    return values


def ring(block: Tensor, sizes: Sizes, group: Group, passes: int | None = None) -> Iterator[Tensor]:
    """The blocks of the ranks before this one, nearest first, as they are passed on round the ring."""
    rank, world = dist.get_rank(group), len(sizes)
    after, before = (dist.get_global_rank(group, (rank + step) % world) for step in (1, -1))
    held = block.detach().contiguous()
    for step in range(1, world if passes is None else passes + 1):
        incoming = held.new_empty(sizes[(rank - step) % world], *block.shape[1:])
        work = [dist.P2POp(dist.isend, held, after, group)] if len(held) else []
        work += [dist.P2POp(dist.irecv, incoming, before, group)] if len(incoming) else []
        for request in dist.batch_isend_irecv(work) if work else []:
            request.wait()
        held = incoming
        yield held


def gather_rows(rows: Tensor, sizes: Sizes, group: Group, dtype: torch.dtype) -> Tensor:
    """The rows of all ranks in `dtype`, sent in their own and their gradient summed in `dtype`."""
    return _GatherRows.apply(rows, sizes, group, dtype)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: Sizes, group: Group, dtype: torch.dtype) -> Tensor:
        ctx.sizes, ctx.group, ctx.dtype = sizes, group, rows.dtype
        return all_gather(rows, sizes, group).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        exact = reduce_scatter(grads[0], ctx.sizes, ctx.group)
        return exact.mul_(len(ctx.sizes)).to(ctx.dtype), None, None, None


def once(tensor: Tensor, group: Group) -> Tensor:
    """A gathered tensor on its way into what every rank computes alike."""
    return _Once.apply(tensor, dist.get_world_size(group))


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, world: int) -> Tensor:
        ctx.world = world
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0] / ctx.world, None


def sum_over_ranks(parts: Sequence[Tensor], group: Group) -> list[Tensor]:
    """Each of `parts` summed over ranks, all in one message."""
    flat = _SumOverRanks.apply(torch.cat([part.reshape(-1) for part in parts]), group)
    pieces = flat.split([part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        return reduce(values, "SUM", group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0], None


def mean_gradient(loss: Tensor, group: Group) -> Tensor:
    """The loss, whose gradient is what the ranks' own factors (a loss scale, a share) come to on average."""
    return _MeanGradient.apply(loss, group)


class _MeanGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return loss.view_as(loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return reduce(grads[0], "SUM", ctx.group) / dist.get_world_size(ctx.group), None


def own_rows(values: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """This rank's part of a replicated tensor with a row for each sample of the global batch."""
    return _OwnRows.apply(values, sizes, group)


class _OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, sizes: Sizes, group: Group) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        return values.split(list(sizes))[dist.get_rank(group)].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return all_gather(grads[0], ctx.sizes, ctx.group) / len(ctx.sizes), None, None


def own_rows_of_columns(columns: Tensor, sizes: Sizes, widths: Sizes, group: Group) -> Tensor:
    """From each rank's columns of all rows to this rank's rows of all columns."""
    return _OwnRowsOfColumns.apply(columns, sizes, widths, group)


class _OwnRowsOfColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, sizes: Sizes, widths: Sizes, group: Group) -> Tensor:
        ctx.sizes, ctx.widths, ctx.group = sizes, widths, group
        own, width = sizes[dist.get_rank(group)], columns.shape[1]
        counts = [own * other for other in widths]
        received = _exchange(columns, [size * width for size in sizes], counts, group)
        parts = zip(received.split(counts), widths, strict=True)
        return torch.cat([part.view(own, other) for part, other in parts], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        rank = dist.get_rank(ctx.group)
        own, width = ctx.sizes[rank], ctx.widths[rank]
        flat = torch.cat([part.reshape(-1) for part in grads[0].split(list(ctx.widths), 1)])
        counts = [own * other for other in ctx.widths], [size * width for size in ctx.sizes]
        received = _exchange(flat, *counts, ctx.group)
        return received.view(sum(ctx.sizes), width) / len(ctx.sizes), None, None, None


def _exchange(values: Tensor, sent: Sizes, kept: Sizes, group: Group) -> Tensor:
    """`sent[r]` numbers to each rank r, and `kept[r]` from it."""
    received = values.new_empty(sum(kept))
    dist.all_to_all_single(received, values.reshape(-1), list(kept), list(sent), group=group)
    return received
