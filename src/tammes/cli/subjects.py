"""What commands write pages about."""

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tammes.data.arrays import read_arrays
from tammes.geometry.margins import nearest_prototypes
from tammes.provenance import stamp
from tammes.report import Subject, inspect
from tammes.training.folder import RunFolder, Which
from tammes.training.reuse import Split, evaluate_run
from tammes.training.sinks import read_log
from tammes.training.verification import read_verified


def common(paths: Sequence[Path]) -> Path:
    """The folder that holds all of them, or the only one, written as short as it can be."""
    found = Path(os.path.commonpath([path.resolve() for path in paths]))
    return found if paths[0].is_absolute() else Path(os.path.relpath(found))


def recorded(paths: Sequence[Path]) -> list[Subject]:
    """The runs in `paths`, each once, as they were measured at their end, named as they differ."""
    paths = list({path.resolve(): path for path in paths}.values())
    folders = [RunFolder(path) for path in paths]
    found = [_of_run(folder, folder.finished()["metrics"], folder.arrays) for folder in folders]
    if len(paths) == 1:
        return found
    names = [os.path.relpath(path, common(paths)) for path in paths]
    return [dataclasses.replace(s, name=name) for s, name in zip(found, names, strict=True)]


def measured(path: Path, *, which: Which, split: Split) -> Subject:
    """The run in `path`, measured anew."""
    folder = RunFolder(path)
    evaluation = evaluate_run(folder, which=which, split=split)
    found = _of_run(folder, evaluation.numbers(), evaluation.arrays, which)
    return dataclasses.replace(found, notes=[f"Measured on the {split} images, with the {which} weights."])


def _of_run(
    folder: RunFolder, numbers: dict[str, Any], arrays: dict[str, np.ndarray], which: Which = "last"
) -> Subject:
    facts, record = folder.facts, folder.result or {"config": dataclasses.asdict(folder.config)}
    weight = folder.weights(which)["head.weight"].float() if folder.checkpoint() else None
    if weight is not None and "nearest_angle" not in arrays:  # measured on classes without prototypes
        neighbour, angle = nearest_prototypes(weight)
        arrays = arrays | {"nearest_class": neighbour.numpy(), "nearest_angle": angle.numpy()}
    return Subject(
        name=str(folder.path),
        data=facts.name,
        classes=facts.classes,
        dimensions=record["dimensions"] if weight is None else weight.shape[1],
        numbers=numbers,
        arrays=arrays,
        prototypes=None if weight is None else weight.numpy(),
        epochs=[line for line in read_log(folder.log) if line["kind"] == "epoch"],
        record=record,
        verified=read_verified(folder),
    )


def stored(path: Path) -> Subject:
    """The model whose embeddings are in the file `path`."""
    start = time.perf_counter()
    arrays = read_arrays(path, ("embeddings", "labels"))
    classes = arrays["classes"].tolist() if "classes" in arrays else None
    found = inspect(
        arrays["embeddings"], arrays["labels"], arrays.get("prototypes"), classes=classes, name=path.stem
    )
    config = {"file": path.name, "arrays": {name: list(array.shape) for name, array in arrays.items()}}
    record = {"config": config} | stamp(seconds=time.perf_counter() - start)
    return dataclasses.replace(found, record=record)
