r"""Differentiable collectives, each with its gradient.

The ranks jointly minimize F, the mean over ranks of the tensors that `backward` is called on. A tensor is
*replicated* if all ranks hold the same values; each rank then holds its full gradient of F. It is *partial*
if a rank's gradient covers only its own classes; the gradient of F is then the sum over ranks.

| function | forward | gradient |
|---|---|---|
| `gathered` | all-gather | partial: reduce-scatter, times W |
| `shared` | identity, for a replicated parameter | partial: all-reduce (sum) |
| `once` | identity, for a gathered tensor in a replicated computation | divided by W, to count once |
| `sum_over_ranks` | all-reduce (sum) | passed unchanged to every rank |
| `merge_tables` | gather and merge, row by row | none: `merged_statistics.py` has it |
| `mean_gradient` | identity, for the replicated loss | mean over ranks |
| `own_samples` | this rank's rows of a replicated tensor | all-gather, divided by W |
| `own_rows_of_columns` | all-to-all: (N, k_r) to (n_r, k) | all-to-all back, divided by W |

W is the world size. Embeddings receive W times their exact gradient, because DDP averages the backbone's
gradients over ranks; the result is exact for any local batch sizes. All functions are differentiable once and
reject `create_graph=True`.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any
"""A `torch.distributed.ProcessGroup`."""

Sizes = Sequence[int]
"""Number of rows of each rank."""

ONE_MESSAGE = 8
"""Maximum number of ranks that send tables to be merged to all others, rather than each merging some rows."""

POLL_SECONDS = 1e-2
"""How long to poll for the end of a collective on CPU tensors before sleeping until it ends.

A sleeping thread takes about as long to wake up as a small message to arrive. Ranks that do the same work
are often a few milliseconds apart; those that are further apart have other work.
"""


def first_order_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make `backward` reject `create_graph=True`; torch's `once_differentiable` may ignore it silently."""

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "ShardedPrototypeHead is differentiable once: create_graph=True cannot follow its gradients "
                "across ranks. For second derivatives use PrototypeHead(..., block_size=None)."
            )
        return backward(ctx, *grads)

    return checked


def gather_numbers(numbers: Sequence[int], group: Group, device: torch.device) -> list[list[int]]:
    """All-gather integers. Every rank must pass the same number of them."""
    own = torch.tensor([numbers], dtype=torch.int64, device=device)
    return all_gather(own, [1] * dist.get_world_size(group), group).tolist()


def gather_texts(text: str, group: Group, device: torch.device) -> list[str]:
    """All-gather a string."""
    own = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8).to(device)
    sizes = [size for (size,) in gather_numbers([len(own)], group, device)]
    parts = all_gather(own, sizes, group).split(sizes)
    return [bytes(part.tolist()).decode().strip("\0") for part in parts]


def all_gather(rows: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """Concatenate the rows of all ranks in rank order; not differentiable."""
    most = max(sizes)
    padding = rows.new_zeros(most - len(rows), *rows.shape[1:])
    padded = torch.cat([rows, padding]) if len(padding) else rows.contiguous()
    gathered = rows.new_empty(len(sizes) * most, *rows.shape[1:])
    _wait(dist.all_gather_into_tensor(gathered, padded, group=group, async_op=True), gathered)
    if min(sizes) == most:
        return gathered
    return torch.cat([part[:size] for part, size in zip(gathered.split(most), sizes, strict=True)])


def reduce_scatter(rows: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """Sum rows over ranks and return this rank's part. Sums in rank order, so the result is deterministic."""
    return _own_part(rows, sizes, group).sum(0)


def _own_part(rows: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """This rank's part of the rows of each rank (all-to-all), stacked in rank order."""
    own = sizes[dist.get_rank(group)]
    received = rows.new_empty(len(sizes) * own, *rows.shape[1:])
    shares = [own] * len(sizes), list(sizes)
    _wait(dist.all_to_all_single(received, rows.contiguous(), *shares, group=group, async_op=True), received)
    return received.view(len(sizes), own, *rows.shape[1:])


def as_bytes(tables: Sequence[Tensor]) -> Tensor:
    """Tables (n, c) side by side as bytes, to send them in one message whatever their dtypes."""
    return torch.cat([table.contiguous().view(torch.uint8) for table in tables], 1)


def from_bytes(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tables in rows of `as_bytes`, with the widths and dtypes of those in `like`."""
    parts = rows.split([table.shape[1] * table.element_size() for table in like], -1)
    return [part.contiguous().view(table.dtype) for part, table in zip(parts, like, strict=True)]


def merge_tables(
    tables: Sequence[Tensor], merge: Callable[..., Sequence[Tensor]], group: Group
) -> Sequence[Tensor]:
    """Tables (n, c) of all ranks merged row by row, the same on every rank; not differentiable.

    `merge` takes each table as (ranks, n, c) and returns tables of the given widths and dtypes. Few ranks
    send their tables to all. Of many, each merges a part of the rows, so that the number of bytes that a rank
    receives does not grow with their number.
    """
    rows, world = as_bytes(tables), dist.get_world_size(group)
    if world <= ONE_MESSAGE:
        everyone = all_gather(rows, [len(rows)] * world, group).view(world, *rows.shape)
        return merge(*from_bytes(everyone, tables))
    sizes = [len(part) for part in torch.arange(len(rows), device="cpu").tensor_split(world)]
    own = merge(*from_bytes(_own_part(rows, sizes, group), tables))
    return from_bytes(all_gather(as_bytes(own), sizes, group), tables)


def reduce(values: Tensor, operation: str, group: Group) -> Tensor:
    """All-reduce `values` with "MAX", "MIN" or "SUM"; not differentiable."""
    return start_reduce(values, operation, group)()


def start_reduce(values: Tensor, operation: str, group: Group) -> Callable[[], Tensor]:
    """Start a `reduce`; the function returned waits for it. Meanwhile others may be in flight."""
    values = values.detach().clone(memory_format=torch.contiguous_format)
    work = dist.all_reduce(values, getattr(dist.ReduceOp, operation), group=group, async_op=True)

    def finish() -> Tensor:
        _wait(work, values)
        return values

    return finish


def _wait(work: dist.Work | None, received: Tensor) -> None:
    """Wait for the collective that fills `received`; None for a rank outside its group."""
    if work is None:
        return
    if received.device.type == "cpu" and hasattr(os, "sched_yield"):
        end = time.perf_counter() + POLL_SECONDS
        while not work.is_completed() and time.perf_counter() < end:
            os.sched_yield()
    work.wait()


def ring(block: Tensor, sizes: Sizes, group: Group, passes: int | None = None) -> Iterator[Tensor]:
    """Pass blocks around a ring of ranks; yields those of the preceding ranks, nearest first."""
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


def gathered(rows: Tensor, everyone: Tensor, sizes: Sizes, group: Group, dtype: torch.dtype) -> Tensor:
    """The rows of `everyone`, which contain this rank's `rows`, in `dtype`; gradients are summed in it."""
    return _Gathered.apply(rows, everyone, sizes, group, dtype)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, everyone: Tensor, sizes: Sizes, group: Group, dtype: torch.dtype
    ) -> Tensor:
        ctx.sizes, ctx.group, ctx.dtype = sizes, group, rows.dtype
        return everyone.to(dtype)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        exact = reduce_scatter(grads[0], ctx.sizes, ctx.group)
        return exact.mul_(len(ctx.sizes)).to(ctx.dtype), None, None, None, None


def once(tensor: Tensor, group: Group) -> Tensor:
    """Mark a gathered tensor as input to a computation that every rank repeats."""
    return _Once.apply(tensor, dist.get_world_size(group))


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, world: int) -> Tensor:
        ctx.world = world
        return tensor.view_as(tensor)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0] / ctx.world, None


def shared(parameter: Tensor, group: Group) -> Tensor:
    """Mark a parameter that all ranks hold as input to a computation that each does for its own classes."""
    return _Shared.apply(parameter, group)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return reduce(grads[0], "SUM", ctx.group), None


def sum_over_ranks(parts: Sequence[Tensor], group: Group) -> list[Tensor]:
    """Sum each tensor in `parts` over ranks, with a single all-reduce."""
    return start_sum_over_ranks(parts, group)()


def start_sum_over_ranks(parts: Sequence[Tensor], group: Group) -> Callable[[], list[Tensor]]:
    """Start a `sum_over_ranks`; the function returned waits for it. Meanwhile others may be in flight."""
    flat = torch.cat([part.reshape(-1) for part in parts])
    arrive = start_reduce(flat, "SUM", group)

    def finish() -> list[Tensor]:
        pieces = _SumOverRanks.apply(flat, arrive).split([part.numel() for part in parts])
        return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]

    return finish


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, arrive: Callable[[], Tensor]) -> Tensor:
        return arrive()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0], None


def mean_gradient(loss: Tensor, group: Group) -> Tensor:
    """Return `loss` and average its upstream gradient over ranks, whose factors (loss scale) may differ."""
    return _MeanGradient.apply(loss, group)


class _MeanGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return loss.view_as(loss)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return all_gather(grads[0][None], [1] * dist.get_world_size(ctx.group), ctx.group).mean(0), None


def own_samples(values: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """This rank's rows of a replicated tensor with one row per sample of the global batch."""
    return _OwnRows.apply(values, sizes, group)


class _OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, sizes: Sizes, group: Group) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        return values.split(list(sizes))[dist.get_rank(group)].clone()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return all_gather(grads[0], ctx.sizes, ctx.group) / len(ctx.sizes), None, None


def own_rows_of_columns(columns: Tensor, sizes: Sizes, widths: Sizes, group: Group) -> Tensor:
    """Turn this rank's columns of all rows into its rows of all columns (all-to-all)."""
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
    @first_order_only
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        rank = dist.get_rank(ctx.group)
        own, width = ctx.sizes[rank], ctx.widths[rank]
        flat = torch.cat([part.reshape(-1) for part in grads[0].split(list(ctx.widths), 1)])
        counts = [own * other for other in ctx.widths], [size * width for size in ctx.sizes]
        received = _exchange(flat, *counts, ctx.group)
        return received.view(sum(ctx.sizes), width) / len(ctx.sizes), None, None, None


def _exchange(values: Tensor, sent: Sizes, kept: Sizes, group: Group) -> Tensor:
    """Send `sent[r]` values to each rank r and receive `kept[r]` values from it."""
    received = values.new_empty(sum(kept))
    dist.all_to_all_single(received, values.reshape(-1), list(kept), list(sent), group=group)
    return received
