"""Accuracy and margins of any model, from its embeddings and their labels."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tammes._common import tensor_checks
from tammes._common.row_blocks import at_least_single, row_slices
from tammes._common.types import ClassPrototypes, Embeddings, Labels, Prototypes
from tammes.geometry.margins import sample_margins
from tammes.geometry.sphere import normalize
from tammes.lab.report.label_encoding import encode_labels
from tammes.lab.report.model_results import ModelResults
from tammes.metrics._example_samples import some_samples
from tammes.metrics.classification import Evaluation, own_similarities, summarize


@torch.no_grad()
def inspect(
    embeddings: Any,
    labels: Any,
    prototypes: Any = None,
    *,
    classes: Sequence[str] | None = None,
    name: str = "this model",
) -> ModelResults:
    """Evaluate a model trained with any library; `write_page` shows the result.

    Samples are assigned to the class whose prototype has the largest cosine. Rows that are zero or not finite
    are skipped; the notes of the result count them.

    Args:
        embeddings: (n, d), array or tensor, like all that follow.
        labels: (n,), integers; or names, if there are no prototypes or `classes` is given.
        prototypes: (k, d), the last layer's weight, or (k, c, d) with several prototypes per class; defaults
            to the mean direction of each class. A sample that is alone in its class would then be compared
            with itself and is skipped.
        classes: the k names in label order; defaults to the labels themselves.
        name: what the page calls the model.

    >>> found = inspect([[1.0, 0.0], [0.8, 0.6], [0.0, 2.0]], [0, 0, 1], [[1.0, 0.0], [0.0, 1.0]])
    >>> found.numbers["accuracy"], round(found.numbers["sample_margin"], 4)
    (1.0, 0.7333)
    """
    z = _matrix("embeddings", embeddings)
    y = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if y.shape != (len(z),):
        raise ValueError(
            f"labels must have one entry per embedding, got shape {y.shape} for {len(z)} embeddings. "
            "Save both from the same pass, in the same order."
        )
    kept = torch.isfinite(z).all(1) & (z != 0).any(1)
    notes = [] if kept.all() else [_left_out(len(z), int((~kept).sum()))]
    if not kept.any():
        raise ValueError(f"None of the {len(z)} embeddings is finite and nonzero: nothing to measure.")
    weight = None if prototypes is None else _prototypes(prototypes, z.shape[1])
    names, numbers = encode_labels(y[kept.numpy()], classes, None if weight is None else len(weight))
    z, y = z[kept], torch.from_numpy(numbers)
    if weight is not None:
        dtype = at_least_single(z, weight)
        z, weight = z.to(dtype), weight.to(dtype)
    else:
        weight, alone = _class_means(z, y, len(names))
        notes += [MEANS, *([_alone(int(alone.sum()))] if alone.any() else [])]
        z, y = z[~alone[y]], y[~alone[y]]
    evaluation = _evaluate(z, weight, y, means=prototypes is None)
    return ModelResults(
        name=name,
        data=name,
        classes=names,
        dimensions=z.shape[1],
        numbers=evaluation.numbers(),
        arrays=evaluation.arrays,
        prototypes=weight.numpy(),
        notes=notes,
    )


LARGEST = 1e15
"""Entries up to this size can be squared and summed in float32."""

MEANS = "No prototypes were given, so the mean direction of each class's samples is used instead."


def _left_out(n: int, out: int) -> str:
    return f"Left out: {out:,} of {n:,} samples, whose embeddings are zero or not finite."


def _alone(classes: int) -> str:
    return (
        f"Classes with a single sample, which is its own mean: {classes:,}. These samples are not scored, "
        "but others are compared with them."
    )


def _matrix(name: str, values: Any) -> Embeddings:
    matrix = _numbers(name, values)
    tensor_checks.check_matrix(name, matrix)
    return _moderate(matrix)


def _numbers(name: str, values: Any) -> Tensor:
    try:
        numbers = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers of at most 64 bits in a matrix: {error}") from error
    if numbers.is_complex() or numbers.dtype == torch.bool:
        raise TypeError(f"{name} must be real numbers, got {numbers.dtype}.")
    return numbers.to(at_least_single(numbers))


def _moderate(matrix: Embeddings) -> Embeddings:
    """Rows whose squares would overflow or underflow, divided by their largest entry."""
    largest = torch.where(torch.isfinite(matrix), matrix, 0.0).abs().amax(1, keepdim=True)
    extreme = (largest > 0) & ((largest > LARGEST) | (largest < 1 / LARGEST))
    return torch.where(extreme, matrix / largest, matrix)


def _prototypes(values: Any, d: int) -> ClassPrototypes:
    given = _numbers("prototypes", values)
    weight = _matrix("prototypes", given.flatten(0, 1) if given.ndim == 3 else given).view_as(given)
    tensor_checks.check_finite("prototypes", weight)
    tensor_checks.check_class_prototypes(weight)
    if weight.shape[-1] != d:
        raise ValueError(f"prototypes must have {d} columns, as the embeddings have, got {weight.shape[-1]}.")
    return weight


def _class_means(z: Embeddings, labels: Labels, k: int) -> tuple[Prototypes, Tensor]:
    """The mean of the unit embeddings of each class, and which classes have a single sample."""
    means = torch.zeros(k, z.shape[1], dtype=z.dtype).index_add_(0, labels, normalize(z))
    counts = labels.bincount(minlength=k)
    if (counts == 1).all():
        raise ValueError(
            f"Each of the {k} classes has a single sample, which is its own mean. Give prototypes, or more "
            "samples."
        )
    return means / counts[:, None], counts == 1


def _evaluate(z: Embeddings, weight: ClassPrototypes, labels: Labels, *, means: bool) -> Evaluation:
    units = normalize(weight).reshape(-1, z.shape[1])
    centers = len(units) // len(weight)
    found = [(z[rows] @ units.T).argmax(1) // centers for rows in row_slices(len(z))]
    shown = some_samples(len(z))
    samples = {
        "label": labels.numpy(),
        "prediction": torch.cat(found).numpy(),
        "sample_margin": sample_margins(z, weight, labels).numpy(),
        "similarity": own_similarities(z, weight, labels).numpy(),
        "shown": shown,
        "embedding": normalize(z[torch.from_numpy(shown)]).half().numpy(),
    }
    nonnegative = bool((z >= 0).all())
    evaluation = summarize(weight, samples, nonnegative=nonnegative)
    if not (means and nonnegative):
        return evaluation
    # Means of nonnegative vectors are nonnegative too, so no cosine is below 0.
    return dataclasses.replace(
        evaluation,
        class_margin_maximum=min(evaluation.class_margin_maximum, math.pi / 2),
        sample_margin_ceiling=min(evaluation.sample_margin_ceiling, 1.0),
    )
