"""The batch of all ranks, made on each of them from what every rank has."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from tammes.heads.agreement import Standing
from tammes.heads.collectives import Group, Sizes, all_gather, gather_rows
from tammes.losses.labels import Labelling
from tammes.losses.statistics import Targets
from tammes.types import Embeddings, PerSample


class GlobalLabels(NamedTuple):
    """`Labelling` and sample weights of all ranks."""

    targets: Targets
    shares: list[Tensor | None]
    kept: Tensor
    sample_weight: PerSample


def gather_embeddings(
    embeddings: Embeddings, standings: list[Standing], dtype: torch.dtype, group: Group
) -> Embeddings:
    """The embeddings of all ranks in `dtype`, sent in the widest dtype that a rank has.

    Where one rank's need a gradient all take part in its reduction, be it with an empty batch that nobody
    differentiates.
    """
    sent = standings[0].embedding_dtype
    for standing in standings[1:]:
        sent = torch.promote_types(sent, standing.embedding_dtype)
    rows = embeddings.to(sent)
    if any(standing.gradient for standing in standings) and not rows.requires_grad:
        rows = rows.detach().requires_grad_()
    return gather_rows(rows, [standing.rows for standing in standings], group, dtype)


def gather_labels(
    marks: Labelling, sample_weight: Tensor | None, standings: list[Standing], group: Group
) -> GlobalLabels:
    """The labels of all ranks in one message of int64, the bits of floats among them."""
    columns = max(standing.labels for standing in standings)
    packed = all_gather(_pack(marks, sample_weight, columns), sizes_of(standings), group)
    targets, kept, floats = packed.split([columns, 1, columns + 1], 1)
    numbers = floats.contiguous().view(torch.float64)
    shares: list[Any] = [None] if columns == 1 else list(numbers[:, :columns].T)
    return GlobalLabels(targets, shares, kept.squeeze(1).bool(), numbers[:, columns])


def sizes_of(standings: list[Standing]) -> Sizes:
    """How many rows each rank brings."""
    return [standing.rows for standing in standings]


def _pack(marks: Labelling, sample_weight: Tensor | None, columns: int) -> Int[Tensor, "n c"]:
    """Targets, whether a row counts, shares and weight; a row with one label gets it again, with share 0."""
    targets = marks.targets
    assert targets is not None
    ones = torch.ones_like(targets[:, 0], dtype=torch.float64)
    shares = [ones if share is None else share.double() for share in marks.shares]
    missing = columns - targets.shape[1]
    shares += [torch.zeros_like(ones)] * missing
    weight = ones if sample_weight is None else sample_weight.detach().double()
    floats = torch.stack([*shares, weight], 1)
    again = targets[:, :1].expand(-1, missing)
    return torch.cat([targets, again, marks.kept.long()[:, None], floats.view(torch.int64)], 1)
