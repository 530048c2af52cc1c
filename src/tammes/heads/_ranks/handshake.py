"""Validate locally, exchange status, raise together: a failure on one rank raises on every rank.

Every call starts with one all-gather of the integers of `Standing`, together with the batches if these are
expected to have the form of the last (`Forecast`). Texts follow only after a failure, so that all ranks raise
the same error.
"""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tammes.heads._ranks.collectives import Group, all_gather, gather_numbers, gather_texts

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
LONGEST_VALUE = 300
COMPARED_ROWS = 64
KINDS = {kind.__name__: kind for kind in (TypeError, OSError, FileNotFoundError, FileExistsError)}

Result = TypeVar("Result")


class Standing(NamedTuple):
    """Status of one rank at the start of a call."""

    failed: int = 1
    settings: int = 0  # digest of the settings, which must agree on all ranks
    shard: int = 0  # digest of its first prototypes; 0 once they have been compared
    rows: int = 0
    labels: int = 0  # per row; 2 for mixed labels, 0 in a call without labels
    plain: int = 1  # whether every row has one label and counts once
    dtype: int = 0  # index in DTYPES
    gradient: int = 0  # whether the embeddings require gradients

    @property
    def embedding_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def form(self) -> tuple[int, ...]:
        """What determines how the batch is sent."""
        return self.rows, self.labels, self.plain, self.dtype


def digest(content: bytes) -> int:
    """A positive int64 hash of `content`."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) >> 1 | 1


def shard_digest(weight: Tensor) -> int:
    """Digest of the first rows of a shard; 0 for an empty one."""
    rows = weight.detach()[:COMPARED_ROWS].double().cpu().contiguous()
    return digest(rows.numpy().tobytes()) if len(rows) else 0


def agree(
    own: Standing, settings: str, error: Exception | None, ahead: Tensor, group: Group
) -> tuple[list[Standing], Tensor]:
    """Exchange the status of all ranks. Raise on every rank if one has failed or their settings differ.

    The bytes `ahead`, equally many on every rank, are sent along; returns those of all ranks, (ranks, bytes).
    """
    device = ahead.device
    header = torch.tensor(own, dtype=torch.int64, device=device).view(torch.uint8)
    message = torch.cat([header, ahead])[None]
    received = all_gather(message, [1] * dist.get_world_size(group), group)
    of_headers, of_batches = received.split([len(header), len(ahead)], 1)
    standings = [Standing(*numbers) for numbers in of_headers.contiguous().view(torch.int64).tolist()]
    if any(standing.failed for standing in standings):
        _raise_together(error, group, device)
    if len({standing.settings for standing in standings}) > 1:
        raise ValueError(_disagreement([text.split("\n") for text in gather_texts(settings, group, device)]))
    _check_shards(standings)
    if not any(standing.rows for standing in standings):
        raise ValueError(
            "embeddings must have at least one row on some rank, got none on any. Skip the batch."
        )
    return standings, of_batches


def together(action: Callable[[], Result], group: Group, device: torch.device) -> Result:
    """Run `action` on every rank and return its result. If it raises on one rank, all ranks raise."""
    result: Any = None
    error = None
    try:
        result = action()
    except Exception as caught:  # of any kind: the other ranks must not wait
        error = caught
    if any(failed for (failed,) in gather_numbers([error is not None], group, device)):
        _raise_together(error, group, device)
    return result


def _raise_together(error: Exception | None, group: Group, device: torch.device) -> None:
    """Raise the error of the first failing rank on all ranks, with the messages of all failing ranks."""
    text = "" if error is None else f"{type(error).__name__}: {error}"
    texts = enumerate(gather_texts(text, group, device))
    failures = [(rank, *text.partition(": ")) for rank, text in texts if text]
    kind = KINDS.get(failures[0][1], ValueError)
    raise kind("\n".join(f"On rank {rank}: {words}" for rank, _, _, words in failures)) from error


def _disagreement(settings: list[list[str]]) -> str:
    """Describe the first setting that differs between ranks, with both values."""
    first = settings[0]
    for rank, other in enumerate(settings):
        for mine, theirs in zip(first, other, strict=False):
            if mine != theirs:
                name, value = mine.split(": ", 1)
                got = theirs.split(": ", 1)[-1]
                return (
                    f"All ranks must have the same {name}: rank 0 has {_short(value)}, "
                    f"rank {rank} has {_short(got)}."
                )
    raise AssertionError(f"Settings have equal lines but different digests: {first}")


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}..."


def _check_shards(standings: list[Standing]) -> None:
    seen: dict[int, int] = {}
    for rank, standing in enumerate(standings):
        if standing.shard and seen.setdefault(standing.shard, rank) != rank:
            raise ValueError(
                f"Ranks {seen[standing.shard]} and {rank} hold the same prototypes, but each must hold those "
                "of its own classes. DistributedDataParallel copies rank 0's to all ranks, and FSDP mixes "
                "them: wrap only the backbone, or exclude the head with fully_shard(..., "
                "ignored_params={head.weight}). Load checkpoints with tammes.heads.load_head."
            )


def described(values: Tensor | None) -> str:
    """A summary of a tensor that identifies it: range and digest."""
    if values is None:
        return "None"
    content = values.detach().double().cpu()
    return f"{content.min():g} to {content.max():g}, digest {digest(content.numpy().tobytes()):x}"
