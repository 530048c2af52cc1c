"""Compute the loss from `Statistics`: evaluate every term, weight it, reduce and add."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tammes._common import checks, tensor_checks
from tammes._common.types import Embeddings, PerSample, Prototypes, Scalar
from tammes.losses._engine.batch_values import (
    WITHOUT_MEMORY,
    Memory,
    complete,
    observed,
    reads_the_batch,
    summary_of,
)
from tammes.losses._engine.dense_statistics import dense
from tammes.losses._engine.labels import IGNORE_INDEX, MixedLabels, labelling
from tammes.losses._engine.objective_plan import ClassValues, ScaleValues, logit_space, plan_of, term_keys
from tammes.losses._engine.plan import Plan, Targets
from tammes.losses._engine.soft_targets import EveryTarget
from tammes.losses._engine.statistics import Statistics
from tammes.losses.objective import Objective, PrototypeTerm, SampleTerm, Term

Reduction = Literal["mean", "none"]
Producer = Callable[[Embeddings, Prototypes, Targets, Plan], Statistics]
"""A way to compute statistics: dense, streamed, sharded."""


class Weighting(NamedTuple):
    """How much each sample counts: class weights, sample weights and ignored rows.

    The label of a `soft` row is a distribution. As in torch, such a row counts once in the divisor of the
    mean, whatever the weights of its classes; a row with a class index counts by the weight of that class.
    """

    class_weight: Tensor | None
    sample_weight: PerSample | None
    kept: Tensor
    soft: bool | Tensor = False
    all_kept: bool = False  # known without reading `kept`

    def of_rows(self, rows: slice) -> "Weighting":
        """The same for some of the rows."""
        sample_weight = None if self.sample_weight is None else self.sample_weight[rows]
        soft = self.soft[rows] if isinstance(self.soft, Tensor) else self.soft
        return Weighting(self.class_weight, sample_weight, self.kept[rows], soft, self.all_kept)

    @property
    def equal(self) -> bool:
        """Whether every row is known to count once, if it has one label."""
        return self.all_kept and self.class_weight is None and self.sample_weight is None


class Rows(NamedTuple):
    """Weighted values, the weights, and the contribution of each row to the divisor of the mean."""

    weighted: Tensor  # (n,), or (m, n) for m values per sample
    weight: PerSample | None  # None if every row counts once
    divisor: PerSample | None

    def mean(self) -> Tensor:
        """Weighted mean over the samples; 0 where the divisor is (torch: nan)."""
        if self.divisor is None:
            return self.weighted.mean(-1)
        total = self.divisor.sum()
        empty = total == 0
        return torch.where(empty, 0.0, self.weighted.sum(-1) / torch.where(empty, 1.0, total))

    def log_sum_exp(self, scale: float | Scalar) -> Scalar:
        r""":math:`\frac{1}{s} \log \sum_i w_i e^{s \ell_i}`; 0 where no row counts."""
        if self.weight is None:
            return torch.logsumexp(scale * self.weighted, 0) / scale
        counts = self.weight > 0
        value = self.weighted / torch.where(counts, self.weight, 1.0)
        logs = torch.where(counts, scale * value + torch.where(counts, self.weight, 1.0).log(), -torch.inf)
        some = counts.any()
        total = torch.logsumexp(torch.where(some, logs, 0.0), 0) / scale
        return torch.where(some, total, 0.0)


def rows_of(
    values: Sequence[Tensor],
    labels: Sequence[Tensor],
    shares: Sequence[Tensor | None],
    weighting: Weighting,
    *,
    weighted_by_class: bool = False,
) -> Rows:
    """Values (n,) or (m, n) for each label of each sample as weighted values per sample.

    With `weighted_by_class` the values already contain their class weights (see `softmax_loss`).
    """
    single = len(shares) == 1 and shares[0] is None
    if single and weighting.equal:
        return Rows(values[0], None, None)
    num_rows = len(weighting.kept)
    row = weighting.kept.to(values[0].dtype)
    if weighting.sample_weight is not None:
        row = row * weighting.sample_weight.to(row.dtype)
    if single and weighting.class_weight is None:  # equivalent, in fewer steps
        return Rows(torch.where(weighting.kept, row * values[0], 0.0), row, row)
    weighted, weight = 0.0, 0.0
    for value, label, share in zip(values, labels, shares, strict=True):
        part = value.new_ones(value.shape[-1]) if share is None else share.to(value.dtype)
        by_class = part if weighting.class_weight is None else part * weighting.class_weight[label].to(value)
        weighted = weighted + _row_sums((part if weighted_by_class else by_class) * value, num_rows)
        weight = weight + _row_sums(by_class, num_rows)
    assert isinstance(weighted, Tensor)
    assert isinstance(weight, Tensor)
    soft = torch.as_tensor(weighting.soft, device=weight.device)
    divisor = row * torch.where(soft, 1.0, weight)
    return Rows(torch.where(weighting.kept, row * weighted, 0.0), row * weight, divisor)


def _row_sums(values: Tensor, num_rows: int) -> Tensor:
    """The sum of each row's values, if it has one per class."""
    return values if values.shape[-1] == num_rows else values.unflatten(-1, (num_rows, -1)).sum(-1)


def _adds_up_by_rows(mean: "MeanLoss") -> bool:
    """Whether every term is a mean over samples, and no weight requires a gradient.

    A function, because torch.compile of torch 2.9 does not trace properties of named tuples.
    """
    weights = (
        mean.weighting.class_weight,
        mean.weighting.sample_weight,
        *mean.shares,
        *mean.class_values.values(),
    )
    means = all(_own_reduction(term) == "mean" for _, term in mean.objective.weighted_terms)
    return means and not any(weight is not None and weight.requires_grad for weight in weights)


class MeanLoss(NamedTuple):
    """The loss of a batch by chunks of rows, if every term is a mean over samples.

    The divisor of the mean depends only on labels and weights, so a head can compute the contribution of a
    chunk to the loss, and its gradient, independently of the other chunks. Terms that read a sum over the
    prototypes are added with the first chunk; those that read the whole weight (`riesz`) are excluded.
    """

    objective: Objective
    targets: Targets
    shares: list[Tensor | None]
    weighting: Weighting
    class_values: ClassValues

    @staticmethod
    def includes(term: Term) -> bool:
        """Whether `term` is included."""
        return isinstance(term, SampleTerm) or term.need.prototype_sum

    def __call__(self, statistics: Statistics, rows: slice) -> Scalar:
        """The contribution of `rows`, given their statistics, to the loss."""
        shares = [None if share is None else share[rows] for share in self.shares]
        weighting = self.weighting.of_rows(rows)
        divisor = self._divisor(statistics.row_norms.dtype)
        value = statistics.row_norms.new_zeros(())
        for place, (coefficient, term) in enumerate(self.objective.weighted_terms):
            if isinstance(term, SampleTerm):
                found = _rows_of_term(place, term, statistics, shares, weighting, self.class_values)
                value = value + coefficient * found.weighted.sum() / divisor
            elif rows.start == 0 and self.includes(term):
                assert isinstance(term, PrototypeTerm)
                value = value + coefficient * term.of_prototypes(statistics)
        return value

    def _divisor(self, dtype: torch.dtype) -> Scalar | int:
        """The divisor of the mean over all rows; 1 instead of 0, where the sum is 0 too."""
        labels = list(self.targets.unbind(1))
        nothing = [torch.zeros_like(label, dtype=dtype) for label in labels]
        by_row = rows_of(nothing, labels, self.shares, self.weighting).divisor
        if by_row is None:
            return len(self.targets)
        total = by_row.sum()
        return torch.where(total == 0, 1.0, total)


def evaluate_terms(
    objective: Objective,
    statistics: Statistics | EveryTarget,
    shares: list[Tensor | None],
    weighting: Weighting,
    class_values: ClassValues,
    reduction: Reduction = "mean",
    *,
    measures: bool = True,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and the record of this forward pass: value of each term, accuracy and mean margin, detached.

    `measures=False` leaves out accuracy and margin.

    Keys of the record are those of `term_keys`, which do not change with margins.
    """
    unreduced = reduction == "none" or any(
        _own_reduction(term) == "none" for _, term in objective.weighted_terms
    )
    known = statistics.loss if isinstance(statistics, Statistics) else None
    parts = [] if known is None else [known]
    record = {}
    keys = term_keys(objective)
    for place, (coefficient, term) in enumerate(objective.weighted_terms):
        if isinstance(term, PrototypeTerm):
            value = reduced = term.of_prototypes(statistics)
        else:
            assert isinstance(term, SampleTerm)
            rows = _rows_of_term(place, term, statistics, shares, weighting, class_values)
            reduced = _reduce(term, rows, statistics.scale(term.need, place))
            value = _unreduced(term, rows) if unreduced else reduced
        record[keys[place]] = reduced.detach()
        if known is None or not MeanLoss.includes(term):
            parts.append(value if coefficient == 1 else coefficient * value)
    loss = sum(parts[1:], start=parts[0])
    if unreduced:
        loss = loss.expand(len(weighting.kept))  # terms on prototypes alone are the same for every row
    if measures:
        record |= _measures(objective, statistics, shares, weighting)
    return loss, record


def _rows_of_term(
    place: int,
    term: SampleTerm,
    statistics: Statistics | EveryTarget,
    shares: list[Tensor | None],
    weighting: Weighting,
    class_values: ClassValues,
) -> Rows:
    readings = statistics.readings(term.need, place)
    values = [term.per_sample(scores, **_own(class_values, place, scores.labels)) for scores in readings]
    labels = [scores.labels for scores in readings]
    return rows_of(values, labels, shares, weighting, weighted_by_class=term.need.smoothing)


def _own_reduction(term: Term) -> str:
    return getattr(term, "reduction", "mean")


def _own(values: ClassValues, place: int, labels: Tensor) -> dict[str, Tensor]:
    return {name: table[labels] for (other, name), table in values.items() if other == place}


def _reduce(term: SampleTerm, rows: Rows, scale: float | Scalar) -> Scalar:
    return rows.log_sum_exp(scale) if _own_reduction(term) == "lse" else rows.mean()


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
    """Accuracy and mean sample margin (of cosines), without class weights."""
    outcomes = statistics.outcomes(logit_space(objective))
    values = [torch.stack([outcome.correct, outcome.margin]) for outcome in outcomes]
    labels = [outcome.labels for outcome in outcomes]
    accuracy, margin = rows_of(values, labels, shares, weighting._replace(class_weight=None)).mean().unbind()
    return {"accuracy": accuracy, "margin": margin}


def class_value_tensors(
    objective: Objective, num_classes: int, class_counts: Tensor | None, like: Tensor
) -> dict[tuple[int, str], Tensor]:
    """The per-class parameters of all terms, on the device of `like`."""
    counts = None if class_counts is None else tuple(class_counts.tolist())
    tables: dict[tuple[int, str], Tensor] = {}
    for place, (_, term) in enumerate(objective.weighted_terms):
        for name, values in term.class_values(counts).items():
            if len(values) != num_classes:
                raise ValueError(
                    f"{term.text_name} has {name} for {len(values)} classes, but there are {num_classes}."
                )
            table = torch.tensor(values, dtype=torch.float64, device=like.device)
            tables[place, name] = table.to(working_dtype(like))
    return tables


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any tensor is, otherwise float32: half precision is for storage, not for sums."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def check_per_class(name: str, values: Any, num_classes: int, *, zero: bool = False) -> Tensor:
    """`values` as a tensor of one positive number per class; with `zero`, 0 is allowed too."""
    tensor = values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")
    if tensor.is_meta:
        raise ValueError(
            f"{name} must hold values, got a tensor on the meta device. Pass a list, or a tensor made with "
            'device="cpu".'
        )
    if tensor.shape != (num_classes,):
        raise ValueError(f"{name} must have {num_classes} entries, one per class, got {tuple(tensor.shape)}.")
    _check_sign(name, tensor, zero=zero)
    return tensor


def _check_sign(name: str, values: Tensor, *, zero: bool, check: bool = False) -> None:
    """Check that every entry is finite and positive, or non-negative with `zero`."""
    if not (check or tensor_checks.readable(values)):
        return
    right = values.isfinite() & (values >= 0 if zero else values > 0)
    if not right.all():
        place = int((~right).nonzero()[0])
        rule = "at least 0" if zero else "positive"
        raise ValueError(f"{name} must be {rule} and finite, got {values[place].item():g} at {place}.")


def check_sample_weight(sample_weight: Tensor | None, num_samples: int, *, check: bool = False) -> None:
    """Check that `sample_weight`, if given, has a finite, non-negative number per sample."""
    if sample_weight is not None:
        tensor_checks.check_per_sample("sample_weight", sample_weight, num_samples)
        _check_sign("sample_weight", sample_weight, zero=True, check=check)


def loss_of_batch(
    objective: Objective,
    embeddings: Embeddings,
    weight: Tensor,  # (k, d), or (k, c, d) with several prototypes per class
    labels: Tensor | MixedLabels,
    *,
    produce: Producer,
    class_values: ClassValues,
    class_weight: Tensor | None = None,
    sample_weight: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
    check: bool = False,
    scales: ScaleValues | None = None,
    memory: Memory = WITHOUT_MEMORY,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Validate a batch, compute its statistics by `produce`, and evaluate `objective`, in float32 or higher.

    `scales` are the learned ones, in the working dtype. `memory` keeps running statistics between batches.
    """
    num_classes, in_features = weight.shape[0], weight.shape[-1]
    tensor_checks.check_embeddings(embeddings, in_features)
    checks.one_of("reduction", reduction, ("mean", "none"))
    if check:
        tensor_checks.check_finite("embeddings", embeddings)
    dtype = working_dtype(embeddings, weight)
    plan = plan_of(objective, None if class_weight is None else class_weight.to(dtype), class_values, scales)
    marks = labelling(labels, len(embeddings), num_classes, ignore_index, dtype=dtype, check=check)
    check_sample_weight(sample_weight, len(embeddings), check=check)
    weighting = Weighting(class_weight, sample_weight, marks.kept, marks.soft, marks.all_kept)
    with torch.autocast(embeddings.device.type, enabled=False):
        features = embeddings.to(dtype)
        if reads_the_batch(objective):
            plan = complete(plan, objective, summary_of(features, weight, marks), class_values, memory)
        if marks.targets is None:
            statistics = EveryTarget.of(features, weight.to(dtype), plan)
        else:
            mean = MeanLoss(objective, marks.targets, marks.shares, weighting, class_values)
            if reduction == "mean" and _adds_up_by_rows(mean) and not plan.scales:
                plan = plan._replace(loss_of_rows=mean)
            statistics = produce(features, weight, marks.targets, plan)
        value, record = evaluate_terms(
            objective, statistics, marks.shares, weighting, class_values, reduction
        )
        if plan.states and isinstance(statistics, Statistics):
            memory.keep(objective, observed(objective, statistics, marks.shares, marks.kept))
    if check:
        check_finite_loss(value, objective, record, weight)
    return value, record


def check_finite_loss(
    loss: Tensor, objective: Objective, record: Mapping[str, Tensor], weight: Tensor
) -> None:
    """Raise if the loss is not finite, naming the terms that are not."""
    if not loss.isfinite().all():
        tensor_checks.check_finite("weight", weight)
        named = zip(objective.weighted_terms, term_keys(objective), strict=True)
        terms = [str(term) for (_, term), key in named if not record[key].isfinite()]
        raise ValueError(
            f"The loss must be finite, got {loss.sum().item()} in {', '.join(terms)}, although embeddings "
            f"and prototypes are finite. Are the scale, norms or weights too large for {loss.dtype}?"
        )


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

    `labels`: (n,) integers, (n, k) soft targets or `MixedLabels`. `class_weight` applies to every per-sample
    term, with the semantics of `weight` in `torch.nn.functional.cross_entropy`:

    - class indices: the mean is sum w_y l / sum w_y over the rows that are not `ignore_index`;
    - label smoothing spreads a label over the classes and weights each by its own weight; the divisor stays
      sum w_y;
    - soft targets q: a row is sum_y q_y w_y l_y, the mean divides by the number of rows.

    `MixedLabels` are the soft targets that they stand for. torch has no `ignore_index` for soft targets; here
    a mixed row with an ignored label is left out of sum and divisor. `sample_weight` multiplies each row in
    sum and divisor. A divisor of 0 gives a loss of 0. `class_counts` are for LDAM. `reduction="none"`: one
    weighted value per row. `check=True` also reads values on devices where that synchronizes, and raises for
    embeddings, prototypes or losses that are NaN or infinite, which otherwise pass silently. A cheaper
    occasional check is `torch.isfinite(loss)`.
    """
    num_classes, _ = tensor_checks.check_prototypes(weight)
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
