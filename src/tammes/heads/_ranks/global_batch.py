"""Gather the global batch on every rank."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from tammes._common.types import Embeddings, PerSample
from tammes.heads._ranks.collectives import (
    Group,
    Sizes,
    all_gather,
    as_bytes,
    from_bytes,
    gathered,
    start_all_gather,
)
from tammes.heads._ranks.handshake import Standing
from tammes.losses._engine.labels import Labelling
from tammes.losses._engine.plan import Targets


class OwnLabels(NamedTuple):
    """Labels and sample weights of this rank's batch."""

    marks: Labelling
    sample_weight: PerSample | None

    @property
    def columns(self) -> int:
        """Labels per row."""
        return len(self.marks.shares)

    @property
    def plain(self) -> bool:
        """Whether every row has one label and counts once."""
        return self.columns == 1 and self.marks.all_kept and self.sample_weight is None


class GlobalLabels(NamedTuple):
    """`Labelling` and sample weights of all ranks."""

    targets: Targets
    shares: list[Tensor | None]
    kept: Tensor
    soft: Tensor | bool
    sample_weight: PerSample | None
    all_kept: bool = False


def gather_embeddings(
    embeddings: Embeddings, standings: list[Standing], dtype: torch.dtype, group: Group
) -> Embeddings:
    """Gather the embeddings of all ranks and convert them to `dtype`."""
    rows, sizes = _to_send(embeddings, standings), sizes_of(standings)
    return gathered(rows, all_gather(rows.detach(), sizes, group), sizes, group, dtype)


def start_gathering_batch(
    embeddings: Embeddings, own: OwnLabels, standings: list[Standing], dtype: torch.dtype, group: Group
) -> Callable[[], tuple[Embeddings, GlobalLabels]]:
    """Start to gather embeddings and labels of all ranks; the function returned waits for them.

    They are a single message of bytes. If the labels of all ranks are plain, it has just them.
    """
    rows, sizes = _to_send(embeddings, standings), sizes_of(standings)
    plain = all(standing.plain for standing in standings)
    columns = max(standing.labels for standing in standings)
    labels = own.marks.targets if plain else _pack(own, columns)
    assert labels is not None
    tables = (rows.detach(), labels)
    arrive = start_all_gather(as_bytes(tables), sizes, group)

    def finish() -> tuple[Embeddings, GlobalLabels]:
        received, of_labels = from_bytes(arrive(), tables)
        everyone = gathered(rows, received, sizes, group, dtype)
        return everyone, _plain(of_labels) if plain else _unpack(of_labels, columns)

    return finish


def _to_send(embeddings: Embeddings, standings: list[Standing]) -> Embeddings:
    """The embeddings of this rank in the widest dtype of all ranks.

    If one rank needs gradients, all ranks take part in their reduction, even a rank with an empty batch.
    """
    sent = standings[0].embedding_dtype
    for standing in standings[1:]:
        sent = torch.promote_types(sent, standing.embedding_dtype)
    rows = embeddings.to(sent)
    if any(standing.gradient for standing in standings) and not rows.requires_grad:
        rows = rows.detach().requires_grad_()
    return rows


def _plain(targets: Int[Tensor, "n 1"]) -> GlobalLabels:
    """One label for each row, which counts once."""
    kept = torch.ones_like(targets[:, 0], dtype=torch.bool)
    return GlobalLabels(targets, [None], kept, soft=False, sample_weight=None, all_kept=True)


def _unpack(packed: Int[Tensor, "n c"], columns: int) -> GlobalLabels:
    targets, flags, floats = packed.split([columns, 2, columns + 1], 1)
    kept, soft = flags.bool().unbind(1)
    numbers = floats.contiguous().view(torch.float64)
    shares: list[Any] = [None] if columns == 1 else list(numbers[:, :columns].T)
    return GlobalLabels(targets, shares, kept, soft, numbers[:, columns])


def sizes_of(standings: list[Standing]) -> Sizes:
    """Number of rows of each rank."""
    return [standing.rows for standing in standings]


def _pack(own: OwnLabels, columns: int) -> Int[Tensor, "n c"]:
    """Targets, flags (kept, soft), shares and weight; floats as their bits.

    A row with one label repeats it with share 0.
    """
    marks, targets = own.marks, own.marks.targets
    assert targets is not None
    ones = torch.ones_like(targets[:, 0], dtype=torch.float64)
    shares = [ones if share is None else share.double() for share in marks.shares]
    missing = columns - own.columns
    shares += [torch.zeros_like(ones)] * missing
    weight = ones if own.sample_weight is None else own.sample_weight.detach().double()
    floats = torch.stack([*shares, weight], 1)
    again = targets[:, :1].expand(-1, missing)
    flags = torch.stack([marks.kept, torch.full_like(marks.kept, marks.soft)], 1).long()
    return torch.cat([targets, again, flags, floats.view(torch.int64)], 1)
