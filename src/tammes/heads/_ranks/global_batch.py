"""Gather the global batch on every rank."""

from functools import reduce
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from tammes._common.types import Embeddings, PerSample
from tammes.heads._ranks.collectives import Group, Sizes, all_gather, as_bytes, from_bytes, gathered
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


class Meeting(NamedTuple):
    """What a rank knows after the handshake of a call: its labels, the standings and perhaps the batches."""

    own: OwnLabels | None
    standings: list[Standing]
    arrived: Tensor | None  # the rows of all ranks as bytes, if they were sent ahead

    @property
    def sizes(self) -> Sizes:
        """Number of rows of each rank."""
        return [standing.rows for standing in self.standings]


class Forecast:
    """Whether batches have had the same form twice, so that the next ones are sent with the handshake.

    This saves a message. All ranks decide alike, by what all of them know. Copies and unpickled ones know of
    no batch, since they may work with other ranks.
    """

    def __init__(self) -> None:
        self.last: list[Standing] = []
        self.repeated = False

    def __reduce__(self) -> tuple[type["Forecast"], tuple[()]]:
        return Forecast, ()

    def ahead(
        self, embeddings: Embeddings, labels: OwnLabels | None, own: Standing, rank: int, weight: Tensor
    ) -> Tensor:
        """The bytes to send with the handshake: the batch, or zeros if its form is not the expected one."""
        most = max(standing.rows for standing in self.last) if self.repeated else 0
        size = most * _row_bytes(self.last, weight.shape[-1]) if most else 0
        if not size or own.failed or own.form != self.last[rank].form:
            return torch.zeros(size, dtype=torch.uint8, device=weight.device)
        batch = as_bytes(_tables(embeddings, labels, self.last)).flatten()
        return batch if len(batch) == size else torch.cat([batch, batch.new_zeros(size - len(batch))])

    def arrived(self, standings: list[Standing], received: Tensor) -> Tensor | None:
        """The rows of all ranks if every batch was as expected. Takes note of the present ones."""
        expected, self.last = self.last, standings
        sent, sizes = self.repeated, [standing.rows for standing in standings]
        self.repeated = [now.form for now in standings] == [before.form for before in expected]
        if not (sent and self.repeated):
            return None
        rows = received.unflatten(1, (max(sizes), -1))
        if min(sizes) == max(sizes):
            return rows
        return torch.cat([part[:size] for part, size in zip(rows, sizes, strict=True)])


def gather_batch(
    embeddings: Embeddings, meeting: Meeting, dtype: torch.dtype, group: Group
) -> tuple[Embeddings, GlobalLabels | None]:
    """Embeddings in `dtype` and labels of all ranks; None for the latter in a call without labels.

    They are a single message of bytes. If the labels of all ranks are plain, it has just them.
    """
    standings = meeting.standings
    tables = _tables(embeddings, meeting.own, standings)
    received = meeting.arrived
    if received is None:
        received = all_gather(as_bytes(tables), meeting.sizes, group)
    rows, *labels = (table.flatten(0, -2) for table in from_bytes(received, tables))
    everyone = gathered(_to_send(embeddings, standings), rows, meeting.sizes, group, dtype)
    if not labels:
        return everyone, None
    (integers,) = labels
    return everyone, _plain(integers) if _all_plain(standings) else _unpack(integers, _columns(standings))


def _tables(embeddings: Embeddings, own: OwnLabels | None, standings: list[Standing]) -> list[Tensor]:
    """The embeddings, and the labels in the form that the labels of all ranks require."""
    rows = embeddings.detach().to(_widest(standings))
    if own is None:
        return [rows]
    assert own.marks.targets is not None
    return [rows, own.marks.targets if _all_plain(standings) else _pack(own, _columns(standings))]


def _row_bytes(standings: list[Standing], in_features: int) -> int:
    """The bytes of a row of `_tables`."""
    columns = _columns(standings)
    integers = 0 if not columns else 1 if _all_plain(standings) else 2 * columns + 3
    return in_features * _widest(standings).itemsize + 8 * integers


def _columns(standings: list[Standing]) -> int:
    return max(standing.labels for standing in standings)


def _all_plain(standings: list[Standing]) -> bool:
    return all(standing.plain for standing in standings)


def _widest(standings: list[Standing]) -> torch.dtype:
    """The widest dtype of the embeddings of all ranks."""
    return reduce(torch.promote_types, [standing.embedding_dtype for standing in standings])


def _to_send(embeddings: Embeddings, standings: list[Standing]) -> Embeddings:
    """The embeddings of this rank in the widest dtype of all ranks.

    If one rank needs gradients, all ranks take part in their reduction, even a rank with an empty batch.
    """
    rows = embeddings.to(_widest(standings))
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
