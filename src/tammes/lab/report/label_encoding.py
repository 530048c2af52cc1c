"""Encode labels, integers or names, as 0 to k - 1."""

from collections.abc import Sequence

import numpy as np


def encode_labels(
    labels: np.ndarray, classes: Sequence[str] | None, k: int | None
) -> tuple[list[str], np.ndarray]:
    """Class names, and the labels as indices into them.

    Args:
        labels: integers or names.
        classes: names in label order; defaults to the labels themselves.
        k: number of prototypes; None if there are none, and only classes that occur are kept.

    >>> names, numbers = encode_labels(np.array([7, 3, 7]), None, None)
    >>> names, numbers.tolist()
    (['3', '7'], [1, 0, 1])
    """
    if labels.dtype.kind not in "iuU":
        raise TypeError(
            f"labels must be integers or names, got {labels.dtype}. Convert: astype('int64') or astype(str)."
        )
    if k is None and classes is None:
        return _occurring(labels)
    names = [str(name) for name in (range(k or 0) if classes is None else classes)]
    if k is not None and len(names) != k:
        raise ValueError(f"classes must name the {k} prototypes, got {len(names)} names.")
    numbers = _by_name(labels, classes) if labels.dtype.kind == "U" else _in_range(labels, len(names))
    if k is not None:
        return names, numbers
    occurring, numbers = _occurring(numbers)
    return [names[int(number)] for number in occurring], numbers


def _occurring(labels: np.ndarray) -> tuple[list[str], np.ndarray]:
    values, places = np.unique(labels, return_inverse=True)
    if len(values) < 2:
        raise ValueError(f"Margins need at least 2 classes, got only {values.tolist()} in labels.")
    return list(map(str, values.tolist())), places


def _by_name(labels: np.ndarray, classes: Sequence[str] | None) -> np.ndarray:
    if classes is None:
        raise ValueError(
            "labels are names, which cannot be matched to prototypes without classes. Pass the names in "
            "the order of the prototypes."
        )
    numbers = {str(name): number for number, name in enumerate(classes)}
    unknown = sorted(set(labels.tolist()) - set(numbers))
    if unknown:
        raise ValueError(f"labels must be among classes, got {unknown[0]!r}.")
    return np.array([numbers[name] for name in labels.tolist()])


def _in_range(labels: np.ndarray, k: int) -> np.ndarray:
    wrong = labels[(labels < 0) | (labels >= k)]
    if len(wrong):
        raise ValueError(f"labels must lie in [0, {k}), one for each class, got {wrong[0]}.")
    return labels.astype(np.int64)
