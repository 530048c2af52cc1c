"""IJB-B and IJB-C: templates of several images per person, compared pairwise in bounded memory."""

import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Float32, Int

BLOCK = 16_384
"""Rows gathered at a time: 32 MB for 512 float32 numbers per row."""


def template_features(
    embeddings: Float[np.ndarray, "n d"], template: Int[np.ndarray, "_"], medium: Int[np.ndarray, "_"]
) -> tuple[Int[np.ndarray, " t"], Float32[np.ndarray, "t d"]]:
    """The template ids, ascending, and a unit feature vector for each.

    Images of one medium (the frames of a video) are averaged first. A template's feature is the sum over its
    media, scaled to unit norm.

    Args:
        embeddings: Image embeddings, one per row; may be a memory map, since rows are read in blocks.
        template: Template id of each image.
        medium: Medium id of each image within its template.

    >>> rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> template_features(rows, np.array([7, 7, 7]), np.array([1, 1, 2]))[1].round(4).tolist()
    [[0.7070..., 0.7070...]]
    """
    if not len(embeddings) == len(template) == len(medium) or not len(template):
        raise ValueError(
            f"Every image needs an embedding, a template and a medium, got {len(embeddings)}, "
            f"{len(template)} and {len(medium)}."
        )
    order = np.lexsort((medium, template))
    template, medium = template[order], medium[order]
    new_template = _starts(template[1:] != template[:-1])
    new_medium = _starts((template[1:] != template[:-1]) | (medium[1:] != medium[:-1]))
    ends = np.append(new_template, len(order))
    features = np.empty((len(new_template), embeddings.shape[1]), np.float32)
    for some in _runs(new_template, len(order)):
        first, last = (int(end) for end in ends[[some.start, some.stop]])
        media = new_medium[(new_medium >= first) & (new_medium < last)]
        rows = np.asarray(embeddings[order[first:last]], np.float32)
        counts = np.diff(np.append(media, last))
        means = np.add.reduceat(rows, media - first) / counts[:, None]
        features[some] = np.add.reduceat(means, np.searchsorted(media, new_template[some]))
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return template[new_template], features / np.maximum(lengths, np.finfo(np.float32).tiny)


def pair_scores(
    features: Float[np.ndarray, "t d"], first: Int[np.ndarray, " n"], second: Int[np.ndarray, " n"]
) -> Float32[np.ndarray, " n"]:
    """Inner products of the rows `first` and `second` of `features`, a block of pairs at a time.

    Apart from the result, 4 bytes per pair, memory does not grow with the number of pairs.
    """
    scores = np.empty(len(first), np.float32)
    for start in range(0, len(first), BLOCK):
        some = slice(start, start + BLOCK)
        scores[some] = np.einsum("nd,nd->n", features[first[some]], features[second[some]])
    return scores


def template_rows(names: Int[np.ndarray, " t"], wanted: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Index of each of `wanted` in the ascending `names`."""
    places = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    missing = np.unique(wanted[names[places] != wanted])
    if len(missing):
        raise ValueError(
            f"{len(missing)} templates in the pairs have no image, the first is {missing[0]}. "
            "Are both lists from the same data set?"
        )
    return places


def _starts(changes: np.ndarray) -> Int[np.ndarray, " m"]:
    return np.append(0, np.flatnonzero(changes) + 1)


def _runs(starts: Int[np.ndarray, " t"], total: int) -> Iterator[slice]:
    """Slices of complete templates with about `BLOCK` images each."""
    cuts = np.unique(np.searchsorted(starts, np.arange(0, total, BLOCK)))
    cuts = np.append(cuts[cuts < len(starts)], len(starts))
    yield from (slice(a, b) for a, b in itertools.pairwise(cuts.tolist()))
