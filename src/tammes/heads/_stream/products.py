"""The product of all rows with a block of prototypes, reduced to one column per class, and back.

With several prototypes per class (sub-centers), a class is represented by the prototype most similar to the
sample. The products are computed one prototype per class at a time, in matrices with a column per class, so
that maxima and gradients are passes over contiguous memory. Everything between `multiply_block` and `spread`
is then the same as with a single prototype.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tammes.heads._stream.blocks import Block, Options, multiply, row_tiles
from tammes.losses.scores import Space

PRODUCT_COLUMNS = 2048
"""Columns of similarities to compute at once on a CPU: wider products with few rows may take longer.

Pieces are of about equal width, so that equal prototypes tie: very narrow products may round differently.
"""


class Product(NamedTuple):
    """The product of all rows with a block of classes, each represented by its best prototype.

    `beats` has a matrix for each further prototype: 1 where it is more similar than all before, else 0. The
    best one is the last with a 1; `matrix` and `beats` share the memory that the products were computed in.
    """

    matrix: Tensor
    inverse: Tensor  # from the product to that with unit prototypes: a factor per class, or per entry
    beats: list[Tensor]

    def inverse_at(self, columns: Tensor) -> Tensor:
        """The entries of `inverse` at the given columns of each row."""
        return self.inverse[columns] if self.inverse.ndim == 1 else self.inverse.gather(1, columns)

    def prototypes_at(self, columns: Tensor) -> Tensor:
        """The prototypes of the block that represent the classes at the given columns of each row."""
        best = torch.zeros_like(columns)
        for center, beat in enumerate(self.beats, 1):
            best = torch.where(beat.gather(1, columns) > 0, center, best)
        return columns * (len(self.beats) + 1) + best

    def sum_by_prototype(self, matrix: Tensor) -> Tensor:
        """The column sums of `matrix`, each row counted for the prototype that represents the class."""
        parts = _split(matrix, [beat.clone() for beat in self.beats])
        return torch.stack([part.sum(0) for part in parts], 1).flatten()


def multiply_block(rows: Tensor, block: Block, room: Tensor, options: Options) -> Product:
    """The product of `rows` with the prototypes of a block, computed in `room`."""
    n, width, base = len(rows), block.stop - block.start, options.plan.product_space
    parts = list(room.view(-1)[: n * width].view(block.centers, n, -1).unbind(0))
    for part, prototypes in zip(parts, block.by_center(block.part), strict=True):
        pieces = -(-len(prototypes) // PRODUCT_COLUMNS) if part.device.type == "cpu" else 1
        for own, columns in zip(prototypes.chunk(pieces), part.chunk(pieces, 1), strict=True):
            multiply(rows, own.T, columns, options.fast_products)
    best, *others = parts
    if others and base == "raw":
        _best_by_logit(best, others, block, by_unit=options.plan.spaces[0] != "raw")
    elif others:
        _best_of_units(parts, block)
    return Product(best, inverse_of_best(block, others, base), others)


def _best_of_units(parts: list[Tensor], block: Block) -> None:
    """Make the products those with unit prototypes, and reduce them: the first to the best, others to 0, 1.

    Comparisons, unlike masks, are vectorized by torch.
    """
    inverses = block.by_center(block.inverse)
    for rows in row_tiles(parts[0]):
        best, *others = (part[rows].mul_(inverse) for part, inverse in zip(parts, inverses, strict=True))
        for other in others:
            higher = torch.maximum(best, other)
            other.gt_(best)
            best.copy_(higher)


def _best_by_logit(best: Tensor, others: list[Tensor], block: Block, *, by_unit: bool) -> None:
    """The same for products with raw prototypes, compared as they are or as those with unit prototypes."""
    first, *inverses = block.by_center(block.inverse)
    logit = best * first if by_unit else best
    for other, inverse in zip(others, inverses, strict=True):
        own = other * inverse if by_unit else other
        beats = own > logit
        best.copy_(torch.where(beats, other, best))
        logit = torch.maximum(logit, own)
        other.copy_(beats)
    best.copy_(torch.where(logit.isnan(), logit, best))  # NaNs propagate


def inverse_of_best(block: Block, beats: list[Tensor], base: Space) -> Tensor:
    """The `inverse` of a product in `base`: 1 if products are those with unit prototypes already."""
    if not beats:
        return block.inverse
    if base != "raw":
        return torch.ones_like(block.inverse[:: block.centers])
    found, *others = block.by_center(block.inverse)
    for beat, inverse in zip(beats, others, strict=True):
        found = torch.where(beat > 0, inverse, found)
    return found


def spread(gradient: Tensor, beats: list[Tensor], block: Block, base: Space) -> list[Tensor]:
    """The gradients of the products with each prototype of a class, from that of the best one.

    Overwrites `gradient` and `beats`.
    """
    if not beats:
        return [gradient]
    parts = _split(gradient, beats)
    if base != "raw":
        for part, inverse in zip(parts, block.by_center(block.inverse), strict=True):
            part.mul_(inverse)
    return parts


def _split(matrix: Tensor, beats: list[Tensor]) -> list[Tensor]:
    """For each prototype of a class, `matrix` where it is the best one and 0 elsewhere; in place."""
    for beat in reversed(beats):
        matrix.sub_(beat.mul_(matrix))
    return [matrix, *beats]
