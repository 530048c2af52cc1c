"""Validate the files of a run: numbers in range, arrays of matching shapes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tammes._common.checks import reading

Arrays = Mapping[str, np.ndarray]

CLASSES = ("nearest_class", "nearest_angle", "class_accuracy", "class_gamma", "class_sample_margin")
SAMPLES = ("prediction", "sample_margin", "similarity", "confidence")
QUERIES = ("average_precision", "first_rank", "inverse_penalty")


def check_result(path: Path, result: Any) -> None:
    """Check that `result.json` has the fields that tables and pages read."""
    with reading(path, "Was it changed? Restore a copy, or train the run again."):
        _check("the content", isinstance(result, dict), type(result).__name__)
        _check("metrics", isinstance(result.get("metrics"), dict), result.get("metrics"))
        kinds = {"data": str, "config": dict, "asked": dict, "versions": dict, "machine": dict, "date": str}
        for name, kind in kinds.items():
            needed = name in ("data", "config")
            there = isinstance(result.get(name), kind) or (name not in result and not needed)
            _check(name, there, result.get(name))
        _check(
            "objective", isinstance(result["config"].get("objective"), str), result["config"].get("objective")
        )
        _check("seconds", _is_number(result.get("seconds")), result.get("seconds"))
        metrics = result["metrics"]
        for name in ("class_margin_deg", "class_margin_maximum_deg", "maximum_is_exact", *metrics):
            _check(name, _is_number(metrics.get(name)), metrics.get(name))
        if "sample_margin" in metrics:
            _check("sample_margin_ceiling", "sample_margin_ceiling" in metrics, None)


def check_row_record(path: Path, record: Mapping[str, Any], way_out: str) -> None:
    """Check that the record of a table's row has numbers where tables and figures read them."""
    with reading(path, way_out):
        _check("seed", isinstance(record.get("seed", 0), int), record.get("seed"))
        for name in ("config", "metrics", "curves", "histograms"):
            _check(name, isinstance(record.get(name, {}), dict), record.get(name))
        objective = record.get("config", {}).get("objective")
        _check("objective", isinstance(objective, str), objective)
        for name, value in record.get("metrics", {}).items():
            _check(name, _is_number(value), value)
        curves = record.get("curves", {})
        length = len(curves.get("epoch", ()))
        for name, values in curves.items():
            check_list(name, [0 if value is None else value for value in values], length)
        histograms = record.get("histograms", {})
        complete = not histograms or {"similarity", "sample_margin"} <= histograms.keys()
        _check("histograms", complete, f"those of {', '.join(histograms)}")
        for name, histogram in histograms.items():
            for field in ("low", "width"):
                _check(f"{field} of {name}", _is_number(histogram[field]), histogram[field])
            counts = histogram["counts"]
            check_list(f"counts of {name}", counts, len(counts), whole=True, low=0)
            _check(f"counts of {name}", any(counts) and abs(histogram["low"]) <= 2, "all 0, or so far away")
            _check(f"width of {name}", 0 < histogram["width"] * len(counts) <= 5, histogram["width"])


def check_margins(path: Path, arrays: Arrays, classes: int) -> None:
    """Check that the arrays of `margins.npz` match each other and the number of classes."""
    with reading(path, "Was it changed? Measure the run again with tammes inspect."):
        for name in CLASSES:
            if name in arrays:
                _check_row(arrays, name, classes, missing=name.startswith("class_"))
        _check_places(arrays, "nearest_class", classes)
        if "label" in arrays:
            n = len(np.atleast_1d(arrays["label"]))
            for name in ("label", *(name for name in SAMPLES if name in arrays)):
                _check_row(arrays, name, n)
            _check_places(arrays, "label", classes)
            _check_places(arrays, "prediction", classes)
            if "embedding" in arrays:
                _check_row(arrays, "shown", len(arrays["embedding"]))
                _check_places(arrays, "shown", n)
                _check_numbers("embedding", arrays["embedding"], ndim=2)
        if "average_precision" in arrays:
            _check_queries(arrays)
        if "class_count" in arrays:
            _check_row(arrays, "class_count", classes)


def _check_queries(arrays: Arrays) -> None:
    n = len(np.atleast_1d(arrays["average_precision"]))
    for name in QUERIES:
        _check_row(arrays, name, n)
    if "example" in arrays:
        _check_row(arrays, "example", len(arrays["example_picture"]))
        _check_places(arrays, "example", n)
        pictures, right = arrays["example_picture"], arrays["example_right"]
        _check_pictures("example_picture", pictures)
        _check("example_right", right.shape == (len(pictures), pictures.shape[1] - 1), right.shape)


def check_verified(path: Path, arrays: Arrays) -> None:
    """Check that a file of `verification` has scores of same and different pairs."""
    with reading(path, "Was it changed? Verify the run again with tammes verify."):
        n = len(np.atleast_1d(arrays["scores"]))
        _check_row(arrays, "scores", n)
        _check("same", arrays["same"].shape == (n,) and arrays["same"].dtype == bool, arrays["same"].shape)
        _check("same", 0 < int(np.count_nonzero(arrays["same"])) < n, "pairs of only one kind")
        _check_numbers("threshold", arrays["threshold"], ndim=0)
        if "mistake_pictures" in arrays:
            m = len(arrays["mistake_pictures"])
            _check_pictures("mistake_pictures", arrays["mistake_pictures"])
            _check("mistake_names", arrays["mistake_names"].shape == (m, 2), arrays["mistake_names"].shape)
            _check_row(arrays, "mistake_scores", m)
            _check("mistake_same", arrays["mistake_same"].shape == (m,), arrays["mistake_same"].shape)


def finite_numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers in a log record that can be plotted."""
    return {name: value for name, value in record.items() if _is_number(value)}


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """Check that `value` is a list of strings; return it as a tuple."""
    _check(name, isinstance(value, Sequence) and all(isinstance(one, str) for one in value), value)
    return tuple(value)


def check_list(
    name: str, value: Any, length: int, *, whole: bool = False, low: float = -math.inf
) -> tuple[Any, ...]:
    """Check that `value` is a list of `length` finite numbers of at least `low`; return it as a tuple."""
    kinds = int if whole else int | float
    good = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    values = list(value) if good else []
    fits = all(isinstance(one, kinds) and _is_number(one) and one >= low for one in values)
    _check(name, good and fits and len(values) == length, value)
    return tuple(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300  # false for NaN


def _check(name: str, good: bool, got: Any) -> None:
    if not good:
        raise ValueError(f"{name} cannot be {str(got)[:80]}")


def _check_numbers(name: str, array: np.ndarray, ndim: int, *, missing: bool = False) -> None:
    _check(name, array.ndim == ndim and array.dtype.kind in "iufb", f"{array.dtype} of shape {array.shape}")
    values = array.astype(np.float64)
    values = values[~np.isnan(values)] if missing else values
    _check(
        name,
        bool(np.isfinite(values).all()) and bool((np.abs(values) < 1e30).all()),
        "too large, or not finite",
    )


def _check_row(arrays: Arrays, name: str, n: int, *, missing: bool = False) -> None:
    _check_numbers(name, arrays[name], 1, missing=missing)
    _check(name, len(arrays[name]) == n, f"of {len(arrays[name])} entries; expected {n}")


def _check_places(arrays: Arrays, name: str, n: int) -> None:
    if name in arrays:
        _check(name, arrays[name].dtype.kind in "iu", arrays[name].dtype)
        _check(name, bool(((arrays[name] >= 0) & (arrays[name] < n)).all()), f"outside [0, {n})")


def _check_pictures(name: str, array: np.ndarray) -> None:
    _check(name, array.dtype == np.uint8 and array.ndim == 5 and array.shape[4] in (1, 3), array.shape)
