"""`Statistics`: the numbers of a `Plan` for a batch, and the `Scores` that each term reads from them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tammes._common.types import ClassPrototypes, Embeddings, PerSample, Prototypes, Scalar
from tammes.geometry.energy import riesz_energy
from tammes.losses._engine.not_asked import NotAsked
from tammes.losses._engine.plan import (
    Need,
    Plan,
    PrototypeSum,
    SimilaritySum,
    Targets,
    TermState,
    logits_of,
    plain_sum,
)
from tammes.losses._engine.rival_logits import Rest, RivalLogits
from tammes.losses.scores import Scores, Smoothing, Space


class Outcome(NamedTuple):
    """Outcome of a batch, for logging; without gradients."""

    labels: Int[Tensor, " n"]
    correct: PerSample  # 1 where the label has the largest similarity (the lowest class wins a tie), else 0
    margin: PerSample  # sample margin, of cosines


NOT_ASKED: dict[str, Any] = {
    "rest": NotAsked("rest", "scale=..."),
    **{
        name: NotAsked(name, f"{name}=True")
        for name in ("hardest", "mean", "norms", "smoothing", "feature_norms", "noise")
    },
}
"""Placeholders for fields that a term did not list in its `Need`; using one raises an error."""


class Rivals(NamedTuple):
    """The largest similarity among the classes that are not targets, and the lowest class that has it."""

    value: PerSample
    label: Int[Tensor, " n"]

    def or_harder(self, value: PerSample, label: Int[Tensor, " n"]) -> "Rivals":
        """These, or rivals with higher labels where they are more similar."""
        harder = value > self.value
        return Rivals(torch.where(harder, value, self.value), torch.where(harder, label, self.label))


class OverClasses(NamedTuple):
    """The statistics that require a pass over all classes, or their gradients.

    Passed in and out of the autograd function as a flat tuple of tensors, whose order is defined only by
    `pack` and `unpack`.
    """

    target: dict[Space, Any]
    rivals: dict[Space, Rivals]
    rest: dict[Rest, Any]
    sums: dict[PrototypeSum, Any]
    rival_sums: dict[SimilaritySum, Any]  # over the classes that are not targets
    target_norms: Any  # None unless the plan asks for norms

    def pack(self) -> tuple[Any, ...]:
        """All entries in one tuple."""
        rivals = [part for rival in self.rivals.values() for part in rival]
        norms = [] if self.target_norms is None else [self.target_norms]
        sums = [*self.sums.values(), *self.rival_sums.values()]
        return (*self.target.values(), *rivals, *self.rest.values(), *sums, *norms)

    @classmethod
    def unpack(cls, plan: Plan, entries: Iterable[Any]) -> "OverClasses":
        """The inverse of `pack`; a missing gradient is None."""
        following = iter(entries)
        return cls(
            target={space: next(following) for space in plan.spaces},
            rivals={space: Rivals(next(following), next(following)) for space in plan.spaces},
            rest={key: next(following) for key in plan.rests},
            sums={which: next(following) for which in plan.sums},
            rival_sums={which: next(following) for which in plan.rival_sums},
            target_norms=next(following) if plan.norms else None,
        )

    @classmethod
    def cat(cls, plan: Plan, parts: "list[OverClasses]") -> "OverClasses":
        """Concatenate the statistics of chunks of rows, which share the sums."""
        columns = zip(*(part.pack() for part in parts), strict=True)
        whole = cls.unpack(plan, [torch.cat(column) for column in columns])
        return whole._replace(sums=parts[0].sums)


@dataclass(frozen=True, eq=False)
class Statistics:
    """The numbers of a `Plan` for a batch; `target` columns follow those of `targets`.

    `rest` and `rivals` exclude every target column; `readings` adds the others back when one column is the
    label. So two mixed labels need no second pass, and nothing is subtracted.
    """

    targets: Targets
    num_classes: int
    target: dict[Space, Float[Tensor, "n t"]]
    rest: dict[Rest, Tensor]  # (n,), or (n, t) where the logits depend on the label
    rivals: dict[Space, Rivals]
    sums: dict[PrototypeSum, Float[Tensor, " d"]]
    rows: dict[Space, Embeddings]  # embeddings as used in each space
    row_norms: PerSample
    target_norms: Float[Tensor, "n t"] | None  # |w_{y_i}|
    riesz: Callable[[float], Scalar]  # `class_energy` for one power
    class_weight: Float[Tensor, " c"] | None = None  # of the classes that `targets` names
    weight_sum: Scalar | None = None  # over the classes in use, which may be a sample
    loss: Scalar | None = None  # sum of `loss_of_rows`; if set, it has gradients and the statistics have none
    logits: Mapping[Rest, RivalLogits] = field(default_factory=dict)  # of the classes that `targets` names
    noise: PerSample | None = None
    states: Mapping[int, TermState] = field(default_factory=dict)
    rival_sums: Mapping[SimilaritySum, PerSample] = field(default_factory=dict)  # with several per class

    @classmethod
    def of(
        cls,
        over_classes: OverClasses,
        rows: dict[Space, Embeddings],
        row_norms: PerSample,
        weight: Prototypes,
        targets: Targets,
        plan: Plan,
    ) -> "Statistics":
        """Construct from the numbers that require a pass over `weight` and those that do not."""
        if plan.centers > 1:  # sums of class means
            means = {which: total / plan.centers for which, total in over_classes.sums.items()}
            over_classes = over_classes._replace(sums=means)
        return cls(
            **over_classes._asdict(),
            targets=targets,
            num_classes=weight.shape[0] // plan.centers,
            rows=rows,
            row_norms=row_norms,
            riesz=lambda power: class_energy(weight.unflatten(0, (-1, plan.centers)), power),
            class_weight=plan.class_weight,
            weight_sum=weight_sum(plan),
            logits=plan.logits,
            noise=plan.noise,
            states=plan.states,
        )

    def readings(self, need: Need, place: int = 0) -> list[Scores]:
        """The `Scores` of the term at `place`, restricted to its `need`: one per target column."""
        return [self._scores(need, place, column) for column in range(self.targets.shape[1])]

    def _scores(self, need: Need, place: int, column: int) -> Scores:
        space = need.space
        asked: dict[str, Any] = {}
        if need.scale is not None:
            asked["rest"] = self._rest(need.rest(place), column)
        if need.hardest:
            asked["hardest"] = self.hardest(space, column).value
        if need.mean:
            asked["mean"] = self._similarity_sum(SimilaritySum(space), column) / self.num_classes
        if need.norms:
            asked["norms"] = self._norms(space, column)
        if need.smoothing:
            asked["smoothing"] = self._smoothing(space, column)
        if need.feature_norms:
            asked["feature_norms"] = self.row_norms
        if need.noise:
            asked["noise"] = self.noise
        return Scores(
            target=self.target[space][:, column],
            scale=self.scale(need, place),
            labels=self.targets[:, column],
            num_classes=self.num_classes,
            state=self.states.get(place, {}),
            **(NOT_ASKED | asked),
        )

    def scale(self, need: Need, place: int) -> float | Scalar:
        """The scale of the term at `place`, which asked for `need`; 1 if it has none."""
        return 1.0 if need.scale is None else logits_of(need.rest(place), self.logits).scale

    def hardest(self, space: Space, column: int = 0) -> Rivals:
        """The hardest wrong class when `column` is the label: a rival, or another target column."""
        value, rival = self.rivals[space]
        for other in self._others(column):
            cosine, label = self.target[space][:, other], self.targets[:, other]
            wrong = label != self.targets[:, column]
            harder = wrong & ((cosine > value) | ((cosine == value) & (label < rival)))
            value, rival = torch.where(harder, cosine, value), torch.where(harder, label, rival)
        return Rivals(value, rival)

    def outcomes(self, logits: Space) -> list[Outcome]:
        """The outcome for each target column as the label."""
        columns = range(self.targets.shape[1])
        return [
            Outcome(
                labels=self.targets[:, column],
                correct=self._correct(logits, column),
                margin=self.target["cosine"][:, column] - self.hardest("cosine", column).value,
            )
            for column in columns
        ]

    def _correct(self, space: Space, column: int) -> PerSample:
        target = self.target[space][:, column]
        value, rival = self.hardest(space, column)
        first = (target > value) | ((target == value) & (self.targets[:, column] < rival))
        return first.to(target.dtype)

    def centroid(self, space: Space) -> Float[Tensor, " d"]:
        """Mean of the raw or the unit prototypes, for terms on prototypes alone."""
        check_asked(self.sums, space)
        return self._mean_prototype(space)

    def _mean_prototype(self, space: Space) -> Float[Tensor, " d"]:
        return self.sums[plain_sum(space)] / self.num_classes

    def _smoothing(self, space: Space, column: int) -> Smoothing:
        if self.class_weight is None:
            similarity = self._similarity_sum(SimilaritySum(space), column)
            return Smoothing(1.0, float(self.num_classes), similarity)
        assert self.weight_sum is not None
        similarity = self._similarity_sum(SimilaritySum(space, weighted=True), column)
        return Smoothing(self.class_weight[self.targets[:, column]], self.weight_sum, similarity)

    def _similarity_sum(self, which: SimilaritySum, column: int) -> PerSample:
        """The sum over all classes: from a sum of prototypes, or if a class has several, from its rivals."""
        if which not in self.rival_sums:
            prototypes = self.sums[plain_sum(which.space)._replace(weighted=which.weighted)]
            return self.rows[which.space] @ prototypes
        total = self.rival_sums[which]
        for other in range(self.targets.shape[1]):
            similarity, labels = self.target[which.space][:, other], self.targets[:, other]
            part = self.class_weight[labels] * similarity if which.weighted else similarity  # pyright: ignore
            counts = (labels != self.targets[:, column]) | (other == column)  # two labels may be equal
            total = total + torch.where(counts, part, 0.0)
        return total

    def _rest(self, key: Rest, column: int) -> PerSample:
        logits = logits_of(key, self.logits)
        rest = self.rest[key] if logits.labels is None else self.rest[key][:, column]
        for other in self._others(column):
            logit = logits.of_target(self.target[key.space][:, other], self.targets[:, other], column)
            wrong = self.targets[:, other] != self.targets[:, column]
            rest = torch.where(wrong, torch.logaddexp(rest, logit), rest)
        return rest

    def _norms(self, space: Space, column: int) -> PerSample:
        if space == "cosine":
            return torch.ones_like(self.row_norms)
        if space == "unit_prototypes":
            return self.row_norms
        assert self.target_norms is not None
        return self.row_norms * self.target_norms[:, column]

    def _others(self, column: int) -> list[int]:
        return [other for other in range(self.targets.shape[1]) if other != column]


def class_energy(weight: ClassPrototypes, power: float) -> Scalar:
    """Riesz energy of pairs of classes; with c prototypes each, the mean over their c^2 pairs."""
    centers = weight.shape[1] if weight.ndim == 3 else 1
    return riesz_energy(weight, power) / centers**2


def check_asked(sums: Mapping[PrototypeSum, Any], space: Space) -> None:
    """Check that a term on prototypes has requested the centroid that it reads."""
    if plain_sum(space) not in sums:
        raise ValueError(
            "The term reads statistics.centroid without requesting it. "
            f'Return Need("{space}", prototype_sum=True) from its `need`.'
        )


LossOfRows = Callable[[Statistics, slice], Scalar]
"""Contribution of some rows to the loss, as a function of their statistics; see `MeanLoss`."""


def weight_sum(plan: Plan) -> Scalar | None:
    """The sum of the class weights, if smoothing needs it."""
    return None if plan.class_weight is None else plan.class_weight.sum()
