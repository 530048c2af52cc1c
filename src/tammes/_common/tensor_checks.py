"""Tensor validation for public functions: shapes, dtypes and, where reading them is free, values."""

import torch
from torch import Tensor

from tammes._common.autograd import transforming


def readable(*tensors: Tensor) -> bool:
    """Whether values can be read for free: CPU tensors outside `torch.compile` and `torch.func`."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or transforming():
        return False
    return all(t.device.type == "cpu" for t in tensors)


def check_prototypes(weight: Tensor) -> tuple[int, int]:
    """k and d, if `weight` is a floating-point (k, d) matrix with at least two rows."""
    check_matrix("weight", weight)
    if len(weight) < 2:
        raise ValueError(
            f"weight must have one row each for at least 2 classes, got shape {tuple(weight.shape)}."
        )
    return len(weight), weight.shape[1]


def check_class_prototypes(weight: Tensor) -> tuple[int, int, int]:
    """k, c and d, if `weight` has one prototype per class, (k, d), or several, (k, c, d)."""
    if weight.ndim != 3:
        k, d = check_prototypes(weight)
        return k, 1, d
    check_matrix("weight", weight.flatten(0, 1))
    if len(weight) < 2 or not weight.shape[1]:
        raise ValueError(
            "weight must have at least one prototype each for at least 2 classes, "
            f"got shape {tuple(weight.shape)}."
        )
    return weight.shape[0], weight.shape[1], weight.shape[2]


def check_embeddings(embeddings: Tensor, in_features: int, *, empty: bool = False) -> None:
    """Check that `embeddings` is a floating-point (n, in_features) matrix; n = 0 only with `empty`."""
    check_matrix("embeddings", embeddings)
    n, d = embeddings.shape
    if d != in_features:
        raise ValueError(
            f"embeddings must have {in_features} columns, like the prototypes, got shape ({n}, {d}). "
            "Set the head's in_features to the width of the network's last layer."
        )
    if n == 0 and not empty:
        raise ValueError(f"embeddings must have at least one row, got shape ({n}, {d}). Skip empty batches.")


def check_matrix(name: str, matrix: Tensor) -> None:
    """Check that `matrix` is a floating-point matrix with at least one column."""
    if not matrix.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {matrix.dtype}. Convert with `.float()`.")
    if matrix.ndim != 2 or not matrix.shape[1]:
        shape, way_out = tuple(matrix.shape), _flatten(name, matrix)
        raise ValueError(f"{name} must be a matrix with one vector per row, got shape {shape}.{way_out}")


def _flatten(name: str, matrix: Tensor) -> str:
    """How to reshape a tensor that does not have two dimensions."""
    if matrix.ndim == 1:
        return f" For a single vector: {name}.unsqueeze(0)."
    if matrix.ndim > 2:
        return f" Flatten the leading dimensions, {name}.flatten(0, {matrix.ndim - 2}), and the labels alike."
    return ""


def check_per_sample(name: str, values: Tensor, n: int) -> None:
    """Check that `values` (labels, sample weights) is a vector with one entry per embedding."""
    if values.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},), one per embedding, got {tuple(values.shape)}.")


def check_labels(
    labels: Tensor, num_classes: int, ignore_index: int | None = None, *, check: bool = False
) -> bool:
    """Check that `labels` is a vector of integers in [0, num_classes), or equal to `ignore_index`.

    The range is checked only where reading values is free (see `readable`), or always with `check`. Returns
    whether it is known that no label is `ignore_index`.
    """
    if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise TypeError(f"labels must be integers, got {labels.dtype}. Convert with `.long()`.")
    if labels.ndim != 1:
        raise ValueError(
            f"labels must be a vector with one class index per sample, got shape {tuple(labels.shape)}. "
            f"{_vector_of_labels(labels, num_classes)}"
        )
    return (check or readable(labels)) and _check_label_range(labels, num_classes, ignore_index)


def _vector_of_labels(labels: Tensor, num_classes: int) -> str:
    """How to turn labels of another shape into a vector."""
    if labels.ndim == 0:
        return "For a single label: labels.unsqueeze(0)."
    if labels.shape[1:] == (1,):
        return "Drop the second dimension: labels.squeeze(1)."
    if labels.shape[1:] == (num_classes,):
        return "For one-hot rows: labels.argmax(1), or labels.float() for soft targets."
    return "Flatten them like the embeddings: labels.flatten()."


def _check_label_range(labels: Tensor, num_classes: int, ignore_index: int | None) -> bool:
    """Check the range; returns whether no label can be `ignore_index`."""
    labels = labels.long()  # num_classes would overflow a small integer type
    lowest, highest = (int(x) for x in torch.aminmax(labels)) if len(labels) else (0, 0)
    if lowest >= 0 and highest < num_classes:
        return ignore_index is None or not lowest <= ignore_index <= highest
    wrong = (labels < 0) | (labels >= num_classes)
    if ignore_index is not None:
        wrong &= labels != ignore_index
    if wrong.any():
        row = int(wrong.nonzero()[0])
        allowed = "" if ignore_index is None else f" or be ignore_index={ignore_index}"
        raise ValueError(
            f"labels must lie in [0, {num_classes}){allowed}, got {int(labels[row])} in row {row}. "
            "Number the classes from 0, with one row of weight for each."
        )
    return False


def check_finite(name: str, tensor: Tensor) -> None:
    """Check that no entry of `tensor` is NaN or infinite; this reads values, so it must be opt-in."""
    wrong = ~torch.isfinite(tensor)
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name} must be finite, got {tensor[tuple(place)].item()} at {place}. "
            "Common causes: a learning rate that is too large, or overflow in half precision."
        )
