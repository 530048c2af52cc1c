r"""Retrieval metrics as used in person re-identification: mAP, CMC and mINP.

Each query ranks the gallery on its own ("single query"). Gallery images of the query's identity from the
query's camera are excluded, as are junk images (id -1); distractors are images of identities that no query
has. If the i-th match, by descending score, has :math:`w_i` non-matches before it, then over the r matches of
a query

.. math::
    AP = \frac1r \sum_{i=1}^{r} \frac{i}{i + w_i}, \qquad
    \text{first rank} = 1 + w_1, \qquad INP = \frac{r}{r + w_r}

so only the scores of non-matches are sorted, without their indices. On ties, non-matches rank before matches:
a network that maps all images to one point gains nothing by it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tammes._common import checks, tensor_checks
from tammes._common.row_blocks import at_least_single
from tammes._common.types import Embeddings, Labels
from tammes.metrics._query_gallery import check_both, in_metric

Metric = Literal["cosine", "euclidean"]

JUNK = -1
"""Identity of images that count neither as matches nor as non-matches."""

TILE = 2**24
"""Maximum number of scores in memory at a time."""

RANKS = (1, 5, 10)


class Shots(NamedTuple):
    """Identity and, if known, camera of each of n images."""

    people: Labels
    cameras: Labels | None = None


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Metrics of each query; NaN and rank 0 for queries without a match in the gallery."""

    average_precision: Float[np.ndarray, " q"]
    first_rank: Int[np.ndarray, " q"]
    inverse_penalty: Float[np.ndarray, " q"]

    @property
    def unmatched(self) -> int:
        """Number of queries without a match, which all metrics ignore."""
        return int((self.first_rank == 0).sum())

    def rank(self, k: int) -> float:
        """CMC: fraction of queries with a match among the first k images."""
        matched = self.first_rank[self.first_rank > 0]
        return float((matched <= k).mean())

    def numbers(self) -> dict[str, float]:
        """mAP, rank-1, rank-5, rank-10 and mINP, as fractions of 1."""
        means = {"mAP": float(np.nanmean(self.average_precision))}
        means |= {f"rank{k}": self.rank(k) for k in RANKS}
        return means | {"mINP": float(np.nanmean(self.inverse_penalty))}


@torch.no_grad()
def retrieval_metrics(
    queries: Embeddings,
    gallery: Float[Tensor, "g d"],
    asked: Shots,
    held: Shots,
    *,
    metric: Metric = "cosine",
) -> Retrieval:
    """Rank the gallery for each query and compute the metrics, a block of queries at a time.

    Args:
        queries, gallery: Embeddings, one per row.
        asked, held: Identities and cameras of queries and gallery; without cameras nothing is excluded.
        metric: Rank by descending cosine or by ascending Euclidean distance.

    >>> gallery = torch.tensor([[1.0, 0.1], [1.0, 0.3], [0.0, 1.0]])
    >>> found = retrieval_metrics(torch.tensor([[1.0, 0.0]]), gallery, Shots(torch.tensor([7])),
    ...                           Shots(torch.tensor([5, 7, 7])))
    >>> found.average_precision.tolist()  # matches at ranks 2 and 3
    [0.5833333333333333]
    """
    _check(queries, gallery, asked, held)
    return _measured(_score_blocks(queries, gallery, metric), asked, held)


@torch.no_grad()
def retrieval_metrics_of_scores(scores: Float[Tensor, "q g"], asked: Shots, held: Shots) -> Retrieval:
    """`retrieval_metrics` from precomputed scores, larger for more similar images."""
    tensor_checks.check_matrix("scores", scores)
    if scores.isnan().any():
        row, column = scores.isnan().nonzero()[0].tolist()
        raise ValueError(f"scores must be numbers, got nan at [{row}, {column}]. Are the embeddings finite?")
    _check_shots(asked, held, *scores.shape)
    blocks = ((part, scores[part].clone()) for part in _query_blocks(*scores.shape))
    return _measured(blocks, asked, held)


@torch.no_grad()
def nearest(
    queries: Embeddings,
    gallery: Float[Tensor, "g d"],
    asked: Shots,
    held: Shots,
    *,
    top: int = 10,
    metric: Metric = "cosine",
) -> Int[Tensor, "q top"]:
    """Gallery indices of the first `top` images for each query, -1 where there are fewer."""
    _check(queries, gallery, asked, held)
    top = checks.at_least("top", top, 1)
    same = _SamePerson(asked, held)
    found = torch.full((len(queries), top), -1, device=queries.device)
    for part, scores in _score_blocks(queries, gallery, metric):
        rows, columns, right = same.pairs(part)
        scores[rows[~right], columns[~right]] = -torch.inf
        scores[:, same.junk] = -torch.inf
        values, places = scores.topk(min(top, len(gallery)))
        found[part, : places.shape[1]] = places.masked_fill(values == -torch.inf, -1)
    return found


def _score_blocks(
    queries: Embeddings, gallery: Float[Tensor, "g d"], metric: Metric
) -> Iterator[tuple[slice, Float[Tensor, "b g"]]]:
    """Blocks of queries with their scores against the whole gallery."""
    dtype = at_least_single(queries, gallery)
    queries, gallery = queries.to(dtype), gallery.to(dtype)
    queries, gallery = in_metric(metric, queries, gallery)
    # In |q - g|^2 / 2 = |q|^2 / 2 - qg + |g|^2 / 2 the first term is constant for a query.
    half_squares = gallery.square().sum(1) / 2 if metric == "euclidean" else None
    for part in _query_blocks(len(queries), len(gallery)):
        scores = queries[part] @ gallery.T
        yield part, scores if half_squares is None else scores.sub_(half_squares)


def _query_blocks(queries: int, gallery: int) -> Iterator[slice]:
    size = max(1, TILE // gallery)
    return (slice(first, min(first + size, queries)) for first in range(0, queries, size))


class _SamePerson:
    """Finds the gallery images with a query's identity; those from another camera are matches."""

    def __init__(self, asked: Shots, held: Shots) -> None:
        self.asked, self.held = asked, held
        people = held.people.cpu().numpy()
        self.order = np.argsort(people, kind="stable")
        self.ordered = people[self.order]
        self.junk = held.people == JUNK

    def pairs(self, part: slice) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"], Bool[Tensor, " m"]]:
        """Row in the block, gallery index and whether it is a match, ordered by row."""
        asked = self.asked.people[part].cpu().numpy()
        first, last = (np.searchsorted(self.ordered, asked, side) for side in ("left", "right"))
        counts = last - first
        rows = np.repeat(np.arange(len(asked)), counts)
        columns = self.order[np.arange(len(rows)) + np.repeat(first - (np.cumsum(counts) - counts), counts)]
        device = self.held.people.device
        place, column = torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)
        right = ~self.junk[column]
        if self.asked.cameras is not None and self.held.cameras is not None:
            right &= self.asked.cameras[part][place] != self.held.cameras[column]
        return place, column, right


def _measured(blocks: Iterator[tuple[slice, Tensor]], asked: Shots, held: Shots) -> Retrieval:
    same = _SamePerson(asked, held)
    parts = [_measure(scores, same.junk, *same.pairs(part)) for part, scores in blocks]
    found = Retrieval(*(torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)))
    if found.unmatched == len(found.first_rank):
        raise ValueError(
            f"None of the {found.unmatched} queries has an image of the same person from another camera in "
            f"the gallery of {len(held.people)}. Do queries and gallery use the same ids?"
        )
    return found


def _measure(
    scores: Float[Tensor, "b g"],
    junk: Bool[Tensor, " g"],
    rows: Int[Tensor, " m"],
    columns: Int[Tensor, " m"],
    right: Bool[Tensor, " m"],
) -> tuple[Float[Tensor, " b"], Int[Tensor, " b"], Float[Tensor, " b"]]:
    """Average precision, first rank and inverse negative penalty of a block; overwrites `scores`."""
    found = scores[rows, columns]
    scores[rows, columns] = -torch.inf  # only non-matches remain
    scores[:, junk] = -torch.inf
    wanted, number = _by_row(found[right], rows[right], len(scores))
    before = _at_least(scores, wanted)
    ascending = torch.arange(wanted.shape[1], device=scores.device)
    place = (
        (number[:, None] - ascending).clamp(min=0).double()
    )  # rank among the matches; 0 where there is none
    precision = place / (place + before).clamp(min=1)
    hardest, easiest = before[:, 0], before.gather(1, (number - 1).clamp(min=0)[:, None]).squeeze(1)
    average = torch.where(number > 0, precision.sum(1) / number, torch.nan)
    penalty = torch.where(number > 0, number / (number + hardest).double(), torch.nan)
    return average, torch.where(number > 0, 1 + easiest, 0), penalty


def _by_row(
    values: Float[Tensor, " m"], rows: Int[Tensor, " m"], b: int
) -> tuple[Float[Tensor, "b most"], Int[Tensor, " b"]]:
    """The values of each row, ascending and padded with infinity, and their number."""
    number = torch.bincount(rows, minlength=b)
    place = torch.arange(len(rows), device=rows.device) - (number.cumsum(0) - number)[rows]
    table = values.new_full((b, max(1, int(number.max()))), torch.inf)
    table[rows, place] = values
    return table.sort(1).values, number


def _at_least(scores: Float[Tensor, "b g"], wanted: Float[Tensor, "b most"]) -> Int[Tensor, "b most"]:
    """For each of `wanted`, the number of scores in its row that are at least as large; sorts `scores`."""
    if scores.device.type == "cpu":
        scores.numpy().sort(axis=1)  # ten times as fast as torch.sort, which also tracks indices
    else:
        scores = scores.sort(1).values
    return scores.shape[1] - torch.searchsorted(scores, wanted)


def _check(queries: Tensor, gallery: Tensor, asked: Shots, held: Shots) -> None:
    check_both(queries, gallery)
    _check_shots(asked, held, len(queries), len(gallery))


def _check_shots(asked: Shots, held: Shots, queries: int, gallery: int) -> None:
    for name, shots, n in (("queries", asked, queries), ("gallery", held, gallery)):
        if not n:
            raise ValueError(f"{name} must contain at least one image, got 0.")
        tensor_checks.check_per_sample(f"people of the {name}", shots.people, n)
        if shots.cameras is not None:
            tensor_checks.check_per_sample(f"cameras of the {name}", shots.cameras, n)
    if (asked.cameras is None) != (held.cameras is None):
        raise ValueError("Pass cameras for both queries and gallery, or for neither.")
