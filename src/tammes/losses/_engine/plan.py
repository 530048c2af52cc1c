"""`Need`, what one term reads of a batch, and `Plan`, what a head computes for all terms of an objective."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from tammes._common.types import PerSample, Scalar
from tammes.losses._engine.rival_logits import AnyScale, Rest, RivalLogits, RivalMap
from tammes.losses.scores import Space

if TYPE_CHECKING:
    from tammes.losses._engine.statistics import LossOfRows

Targets = Int[Tensor, "n t"]
"""The labels of each sample: one column for class indices, two for mixed labels."""

TermState = Mapping[str, Tensor]
"""Running statistics of a term by name, one number each."""


class Need(NamedTuple):
    """What one term reads of a batch. Heads compute nothing else.

    Args:
        space: Similarity that the scores are made of: "cosine", "raw" (inner products) or "unit_prototypes"
            (only the prototypes are normalized).
        scale: Scale s of `scores.rest`; None if the term does not read it. "adaptive" if the term's
            `adaptive_scale` computes it at every step.
        hardest: Whether the term reads `scores.hardest`.
        mean: Whether the term reads `scores.mean`.
        norms: Whether the term reads `scores.norms`.
        prototype_sum: Whether the term reads `statistics.centroid`, for terms on prototypes.
        smoothing: Whether the term reads `scores.smoothing`; it then applies the class weights itself.
        feature_norms: Whether the term reads `scores.feature_norms`.
        noise: Whether the term reads `scores.noise`.
        class_logits: Whether the logits in `rest` are `factor[j] * s * c_ij + offset[j]`, with the `factor`
            and the `offset` that the term's `class_values` returns; either may be missing.
        rival_map: Map of the similarities in `rest`, for losses that re-weight wrong classes.
    """

    space: Space = "cosine"
    scale: AnyScale | None = None
    hardest: bool = False
    mean: bool = False
    norms: bool = False
    prototype_sum: bool = False
    smoothing: bool = False
    feature_norms: bool = False
    noise: bool = False
    class_logits: bool = False
    rival_map: RivalMap | None = None

    def rest(self, place: int) -> Rest:
        """The key of the `rest` that the term at `place` in its objective reads."""
        assert self.scale is not None
        plain = isinstance(self.scale, float | int) and not self.class_logits and self.rival_map is None
        own = None if plain else place
        return Rest(self.space, self.scale, self.rival_map, own)


class PrototypeSum(NamedTuple):
    """A sum over all prototypes: raw or unit ("cosine"), plain or weighted by class."""

    space: Space
    weighted: bool = False


class SimilaritySum(NamedTuple):
    """A sum over all classes of their similarity with a sample, plain or weighted by class."""

    space: Space
    weighted: bool = False


class Plan(NamedTuple):
    """What a head computes for a batch: the union of what all terms of an objective read."""

    spaces: tuple[Space, ...]  # the first one is used for the logits
    rests: tuple[Rest, ...]
    hardest: tuple[Space, ...]  # those with gradients; the values are always computed
    sums: tuple[PrototypeSum, ...]
    norms: bool
    centroids: tuple[PrototypeSum, ...] = ()  # those of `sums` that terms on prototypes alone read
    class_weight: Float[Tensor, " k"] | None = None  # only where a sum is weighted
    loss_of_rows: "LossOfRows | None" = None  # for heads that compute gradients in the forward pass
    logits: Mapping[Rest, RivalLogits] = {}  # for rests whose logits are not just s times a similarity
    noise: PerSample | None = None
    states: Mapping[int, TermState] = {}  # by the place of their term
    centers: int = 1  # adjacent rows of the weight that are prototypes of one class
    similarity_sums: tuple[SimilaritySum, ...] = ()  # that terms read; by `sums` if `centers` is 1

    @classmethod
    def of(cls, needs: Iterable[Need], logits: Space, class_weight: Tensor | None = None) -> "Plan":
        """The union of `needs`, for a head whose logits live in `logits`; margins are always cosines."""
        needs = list(needs)
        rests = [need.rest(place) for place, need in enumerate(needs) if need.scale is not None]
        if not any(need.smoothing for need in needs):
            class_weight = None
        weighted = class_weight is not None
        plain = [plain_sum(need.space) for need in needs if need.mean or need.prototype_sum]
        smooth = [plain_sum(need.space)._replace(weighted=weighted) for need in needs if need.smoothing]
        means = [SimilaritySum(need.space) for need in needs if need.mean]
        smoothings = [SimilaritySum(need.space, weighted) for need in needs if need.smoothing]
        return cls(
            spaces=_distinct([logits, *(need.space for need in needs), "cosine"]),
            rests=_distinct(rests),
            hardest=_distinct(need.space for need in needs if need.hardest),
            sums=_distinct([*plain, *smooth]),
            norms=any(need.norms and need.space == "raw" for need in needs),
            centroids=_distinct(plain_sum(need.space) for need in needs if need.prototype_sum),
            class_weight=class_weight,
            similarity_sums=_distinct([*means, *smoothings]),
        )

    @property
    def rival_sums(self) -> tuple[SimilaritySum, ...]:
        """Sums that require a pass over the classes: with several prototypes, one of each class counts."""
        return self.similarity_sums if self.centers > 1 else ()

    def of_classes(self, classes: slice | Int[Tensor, " c"]) -> "Plan":
        """The plan for a subset of the classes (a shard or a sample), whose statistics are only partial."""
        weight = None if self.class_weight is None else self.class_weight[classes]
        logits = {key: logits.of_classes(classes) for key, logits in self.logits.items()}
        return self._replace(class_weight=weight, loss_of_rows=None, logits=logits)

    def of_rows(self, rows: slice) -> "Plan":
        """The plan for a subset of the rows."""
        logits = {key: logits.of_rows(rows) for key, logits in self.logits.items()}
        return self._replace(logits=logits, noise=None if self.noise is None else self.noise[rows])

    def logits_of(self, key: Rest) -> RivalLogits:
        """How similarities become the logits of the rest `key`."""
        return logits_of(key, self.logits)

    @property
    def scales(self) -> dict[Rest, Scalar]:
        """The scales that need gradients."""
        scales = {key: logits.scale for key, logits in self.logits.items()}
        return {key: s for key, s in scales.items() if isinstance(s, Tensor) and s.requires_grad}

    def with_scales(self, scales: Mapping[Rest, Scalar]) -> "Plan":
        """The plan with other values of some of its scales."""
        changed = {key: replace(self.logits[key], scale=scale) for key, scale in scales.items()}
        return self._replace(logits={**self.logits, **changed})

    @property
    def product_space(self) -> Space:
        """The space of the single matrix product; all others follow by scaling rows and columns."""
        for space in ("raw", "unit_prototypes"):
            if space in self.spaces:
                return space
        return "cosine"


def logits_of(key: Rest, logits: Mapping[Rest, RivalLogits]) -> RivalLogits:
    """How similarities become the logits of the rest `key`; `logits` are those that are special."""
    if key.place is not None:
        return logits[key]
    assert isinstance(key.scale, float | int)
    return RivalLogits(key.scale)


def plain_sum(space: Space) -> PrototypeSum:
    """The sum whose product with a row of `space` is the sum of its similarities."""
    return PrototypeSum("raw" if space == "raw" else "cosine")


def _distinct(items: Iterable) -> tuple:
    return tuple(dict.fromkeys(items))
