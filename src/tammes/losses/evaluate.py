"""From `Statistics` to the loss: every term, weighted, reduced and added."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tammes import checks
from tammes.losses.labels import IGNORE_INDEX, MixedLabels, labelling
from tammes.losses.objective import Objective, PrototypeTerm, SampleTerm, Term, logit_space, plan_of
from tammes.losses.soft_targets import EveryTarget
from tammes.losses.statistics import Plan, Statistics, Targets, dense
from tammes.types import Embeddings, PerSample, Prototypes, Scalar

Reduction = Literal["mean", "none"]
ClassValues = Mapping[tuple[int, str], Tensor]
"""Parameters per class, as tensors of length k, by the place of their term and their name."""

Producer = Callable[[Embeddings, Prototypes, Targets, Plan], Statistics]
"""A way to compute statistics: dense, streamed, sharded."""


class Weighting(NamedTuple):
    """Who counts how much: class weights per label, sample weights per row, ignored rows not at all."""

    class_weight: Tensor | None
    sample_weight: PerSample | None
    kept: Tensor


class Rows(NamedTuple):
    """A value per sample times its weight, and that weight."""

    weighted: PerSample
    weight: PerSample

    def mean(self) -> Scalar:
        """Weighted mean; 0 where no row counts."""
        total = self.weight.sum()
        return self.weighted.sum() / torch.where(total == 0, 1.0, total)

    def log_sum_exp(self, scale: float) -> Scalar:
        r""":math:`\frac{1}{s} \log \sum_i w_i e^{s \ell_i}`; 0 where no row counts."""
        counts = self.weight > 0
        value = self.weighted / torch.where(counts, self.weight, 1.0)
        logs = torch.where(counts, scale * value + torch.where(counts, self.weight, 1.0).log(), -torch.inf)
        some = counts.any()
        total = torch.logsumexp(torch.where(some, logs, 0.0), 0) / scale
        return torch.where(some, total, 0.0)


def rows_of(
    values: Sequence[Tensor], labels: Sequence[Tensor], shares: Sequence[Tensor | None], weighting: Weighting
) -> Rows:
    """Values for each label of each sample as one weighted value per sample."""
    parts = [
        _weighted(value, _share(value, label, share, weighting.class_weight), len(weighting.kept))
        for value, label, share in zip(values, labels, shares, strict=True)
    ]
    weighted, weight = parts[0]
    for more, also in parts[1:]:
        weighted, weight = weighted + more, weight + also
    row = weighting.kept.to(weight.dtype)
    if weighting.sample_weight is not None:
        row = row * weighting.sample_weight.to(weight.dtype)
    return Rows(torch.where(weighting.kept, row * weighted, 0.0), row * weight)


def _share(value: Tensor, label: Tensor, share: Tensor | None, class_weight: Tensor | None) -> Tensor | None:
    """How much each value counts within its row; None for 1."""
    if share is not None:
        share = share.to(value.dtype)
    if class_weight is None:
        return share
    weight = class_weight.to(value.dtype)[label]
    return weight if share is None else share * weight


def _weighted(value: Tensor, share: Tensor | None, num_rows: int) -> tuple[PerSample, PerSample]:
    """The values of each row added up by their shares, and the shares added up."""
    if share is None:
        return value, torch.ones_like(value)
    return (share * value).view(num_rows, -1).sum(1), share.view(num_rows, -1).sum(1)


def evaluate(
    objective: Objective,
    statistics: Statistics | EveryTarget,
    shares: list[Tensor | None],
    weighting: Weighting,
    class_values: ClassValues,
    reduction: Reduction = "mean",
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and the record of this forward: each term's value, accuracy, mean margin (detached)."""
    unreduced = reduction == "none" or any(_own_reduction(term) == "none" for _, term in objective.terms)
    loss: Any = 0
    record = {}
    for place, (coefficient, term) in enumerate(objective.terms):
        if isinstance(term, PrototypeTerm):
            value = reduced = term.of_prototypes(statistics)
        else:
            assert isinstance(term, SampleTerm)
            readings = statistics.readings(term.need)
            values = [
                term.per_sample(scores, **_own(class_values, place, scores.labels)) for scores in readings
            ]
            rows = rows_of(values, [scores.labels for scores in readings], shares, weighting)
            reduced = _reduce(term, rows)
            value = _unreduced(term, rows) if unreduced else reduced
        record[term.text] = reduced.detach()
        loss = loss + coefficient * value
    if unreduced:
        loss = loss.expand(len(weighting.kept))  # terms on prototypes alone are the same for every row
    return loss, record | _measures(objective, statistics, shares, weighting)


def _own_reduction(term: Term) -> str:
    return getattr(term, "reduction", "mean")


def _own(values: ClassValues, place: int, labels: Tensor) -> dict[str, Tensor]:
    return {name: table[labels] for (other, name), table in values.items() if other == place}


def _reduce(term: SampleTerm, rows: Rows) -> Scalar:
    if _own_reduction(term) == "lse":
        assert term.need.scale is not None
        return rows.log_sum_exp(term.need.scale)
    return rows.mean()


def _unreduced(term: SampleTerm, rows: Rows) -> PerSample:
    if _own_reduction(term) == "lse":
        raise ValueError(
            f'{term} is one value for the whole batch and cannot be added under reduction="none".'
        )
    return rows.weighted


@torch.no_grad()
def _measures(
    objective: Objective,
    statistics: Statistics | EveryTarget,
    shares: list[Tensor | None],
    weighting: Weighting,
) -> dict[str, Tensor]:
    """Share of samples classified right and mean sample margin (of cosines); class weights do not enter."""
    outcomes = statistics.outcomes(logit_space(objective)[0])
    labels = [outcome.labels for outcome in outcomes]
    plain = weighting._replace(class_weight=None)
    return {
        "accuracy": rows_of([outcome.correct for outcome in outcomes], labels, shares, plain).mean(),
        "margin": rows_of([outcome.margin for outcome in outcomes], labels, shares, plain).mean(),
    }


def class_value_tensors(
    objective: Objective, num_classes: int, class_counts: Tensor | None, like: Tensor
) -> dict[tuple[int, str], Tensor]:
    """The parameters per class of every term that has some, on the device of `like`."""
    counts = None if class_counts is None else tuple(class_counts.tolist())
    tables: dict[tuple[int, str], Tensor] = {}
    for place, (_, term) in enumerate(objective.terms):
        for name, values in term.class_values(counts).items():
            if len(values) != num_classes:
                raise ValueError(
                    f"{term.text_name} has {name} for {len(values)} classes, but there are {num_classes}."
                )
            table = torch.tensor(values, dtype=torch.float64, device=like.device)
            tables[place, name] = table.to(working_dtype(like))
    return tables


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """Float32, or float64 where a tensor is: half precision is for storage, not for sums."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def check_per_class(name: str, values: Any, num_classes: int, *, zero: bool = False) -> Tensor:
    """`values` as a tensor of one positive number per class; with `zero` that is allowed too."""
    tensor = torch.as_tensor(values)
    if tensor.shape != (num_classes,):
        raise ValueError(f"{name} must have {num_classes} entries, one per class, got {tuple(tensor.shape)}.")
    _check_sign(name, tensor, zero=zero)
    return tensor


def _check_sign(name: str, values: Tensor, *, zero: bool, check: bool = False) -> None:
    """Every entry is finite, and positive unless `zero` is allowed."""
    if not (check or checks.readable(values)):
        return
    right = values.isfinite() & (values >= 0 if zero else values > 0)
    if not right.all():
        place = int((~right).nonzero()[0])
        rule = "at least 0" if zero else "positive"
        raise ValueError(f"{name} must be {rule} and finite, got {values[place].item():g} at {place}.")


def check_sample_weight(sample_weight: Tensor | None, num_samples: int, *, check: bool = False) -> None:
    """`sample_weight`, if there is one, has a finite number that is not negative for each sample."""
    if sample_weight is not None:
        checks.check_per_sample("sample_weight", sample_weight, num_samples)
        _check_sign("sample_weight", sample_weight, zero=True, check=check)


def loss_of_batch(
    objective: Objective,
    embeddings: Embeddings,
    weight: Prototypes,
    labels: Tensor | MixedLabels,
    *,
    produce: Producer,
    class_values: ClassValues,
    class_weight: Tensor | None = None,
    sample_weight: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
    check: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Check a batch, compute its statistics by `produce`, evaluate `objective`; float32 at the least."""
    num_classes, in_features = weight.shape
    checks.check_embeddings(embeddings, in_features)
    checks.one_of("reduction", reduction, ("mean", "none"))
    if check:
        checks.check_finite("embeddings", embeddings)
    dtype, plan = working_dtype(embeddings, weight), plan_of(objective)
    marks = labelling(labels, len(embeddings), num_classes, ignore_index, dtype=dtype, check=check)
    check_sample_weight(sample_weight, len(embeddings), check=check)
    weighting = Weighting(class_weight, sample_weight, marks.kept)
    with torch.autocast(embeddings.device.type, enabled=False):
        features = embeddings.to(dtype)
        if marks.targets is None:
            statistics = EveryTarget.of(features, weight.to(dtype), plan)
        else:
            statistics = produce(features, weight, marks.targets, plan)
        return evaluate(objective, statistics, marks.shares, weighting, class_values, reduction)


def loss(
    objective: Objective,
    embeddings: Embeddings,
    weight: Prototypes,
    labels: Tensor | MixedLabels,
    *,
    class_counts: Tensor | Sequence[float] | None = None,
    class_weight: Tensor | None = None,
    sample_weight: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
    check: bool = False,
) -> Tensor:
    """The loss of `embeddings` (n, d) against prototypes `weight` (k, d).

    `labels`: (n,) integers, (n, k) soft targets or `MixedLabels`. `class_weight` and `sample_weight`
    weigh every per-sample term: mean = sum w l / sum w over the rows that are not `ignore_index`, 0 when
    there is none. `class_counts` are for LDAM. `reduction="none"`: one value per row.
    `check=True` also reads values on devices where that costs a synchronisation.
    """
    num_classes, _ = checks.check_prototypes(weight)
    if class_counts is not None:
        class_counts = check_per_class("class_counts", class_counts, num_classes)
    if class_weight is not None:
        class_weight = check_per_class("class_weight", class_weight, num_classes, zero=True)
    value, _ = loss_of_batch(
        objective,
        embeddings,
        weight,
        labels,
        produce=dense,
        class_values=class_value_tensors(objective, num_classes, class_counts, embeddings),
        class_weight=class_weight,
        sample_weight=sample_weight,
        ignore_index=ignore_index,
        reduction=reduction,
        check=check,
    )
    return value
