"""The margins of any model, from its embeddings and their labels."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tammes import checks
from tammes.geometry.margins import sample_margins
from tammes.geometry.sphere import normalize
from tammes.geometry.tiles import at_least_single, blocks
from tammes.metrics.classification import Evaluation, own_similarities, some_samples, summarise
from tammes.report.labels import number_classes
from tammes.report.subject import Subject
from tammes.types import Embeddings, Labels, Prototypes


@torch.no_grad()
def inspect(
    embeddings: Any,
    labels: Any,
    prototypes: Any = None,
    *,
    classes: Sequence[str] | None = None,
    name: str = "this model",
) -> Subject:
    """Measure a model that was trained anywhere; `write_page` shows what is found.

    Samples are given to the class whose prototype has the largest cosine. Rows that are not finite, or zero,
    are left out; the notes of what is returned say how many.

    Args:
        embeddings: (n, d), arrays or tensors, as all that follow.
        labels: (n,), integers or, where there are no prototypes or the classes are named, names.
        prototypes: (k, d), the last layer's weight; by default the mean direction of each class. A sample
            that is alone in its class would then be compared with itself, and is left out.
        classes: the k names in label order; by default the labels themselves.
        name: what the page calls the model.

    >>> found = inspect([[1.0, 0.0], [0.8, 0.6], [0.0, 2.0]], [0, 0, 1], [[1.0, 0.0], [0.0, 1.0]])
    >>> found.numbers["accuracy"], round(found.numbers["sample_margin"], 4)
    (1.0, 0.7333)
    """
    z = _matrix("embeddings", embeddings)
    y = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if y.shape != (len(z),):
        raise ValueError(
            f"labels must be one for each embedding, got shape {y.shape} for {len(z)} embeddings. "
            "Save both from the same pass, in the same order."
        )
    kept = torch.isfinite(z).all(1) & (z != 0).any(1)
    notes = [] if kept.all() else [_left_out(len(z), int((~kept).sum()))]
    if not kept.any():
        raise ValueError(f"None of the {len(z)} embeddings is finite and not zero: nothing to measure.")
    weight = None if prototypes is None else _prototypes(prototypes, z.shape[1])
    names, numbers = number_classes(y[kept.numpy()], classes, None if weight is None else len(weight))
    z, y = z[kept], torch.from_numpy(numbers)
    if weight is not None:
        dtype = at_least_single(z, weight)
        z, weight = z.to(dtype), weight.to(dtype)
    else:
        weight, alone = _class_means(z, y, len(names))
        notes += [MEANS, *([_alone(int(alone.sum()))] if alone.any() else [])]
        z, y = z[~alone[y]], y[~alone[y]]
    evaluation = _evaluate(z, weight, y, means=prototypes is None)
    return Subject(
        name=name,
        data=name,
        classes=names,
        dimensions=z.shape[1],
        numbers=evaluation.numbers(),
        arrays=evaluation.arrays,
        prototypes=weight.numpy(),
        notes=notes,
    )


MEANS = "There are no prototypes: the mean direction of the samples of each class stands for one."


def _left_out(n: int, out: int) -> str:
    return f"Left out: {out:,} of {n:,} samples, whose embeddings are not finite, or zero."


def _alone(classes: int) -> str:
    return (
        f"Classes with a single sample, which is its own mean: {classes:,}. These samples are not measured, "
        "but others are compared with them."
    )


def _matrix(name: str, values: Any) -> Embeddings:
    try:
        matrix = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers of at most 64 bits in a matrix: {error}") from error
    if matrix.is_complex() or matrix.dtype == torch.bool:
        raise TypeError(f"{name} must be real numbers, got {matrix.dtype}.")
    matrix = matrix.to(at_least_single(matrix))
    checks.check_matrix(name, matrix)
    return matrix


def _prototypes(values: Any, d: int) -> Prototypes:
    weight = _matrix("prototypes", values)
    checks.check_finite("prototypes", weight)
    checks.check_prototypes(weight)
    if weight.shape[1] != d:
        raise ValueError(f"prototypes must have {d} columns, as the embeddings have, got {weight.shape[1]}.")
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


def _evaluate(z: Embeddings, weight: Prototypes, labels: Labels, *, means: bool) -> Evaluation:
    units = normalize(weight)
    found = [(z[rows] @ units.T).argmax(1) for rows in blocks(len(z))]
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
    evaluation = summarise(weight, samples, nonnegative=nonnegative)
    if not (means and nonnegative):
        return evaluation
    # Means of vectors without negative entries have none either: no cosine is below 0.
    return dataclasses.replace(
        evaluation,
        class_margin_maximum=min(evaluation.class_margin_maximum, math.pi / 2),
        sample_margin_ceiling=min(evaluation.sample_margin_ceiling, 1.0),
    )
