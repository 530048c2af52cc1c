"""Load runs and embedding files as the models of a report page."""

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tammes._common.checks import reading
from tammes.geometry.margins import nearest_prototypes
from tammes.lab.data.arrays import read_arrays
from tammes.lab.inference.run_evaluation import SplitName, evaluate_run
from tammes.lab.record_stamp import stamp
from tammes.lab.report import ModelResults, inspect
from tammes.lab.training.face_verification import read_verified
from tammes.lab.training.monitor import read_log
from tammes.lab.training.record_checks import finite_numbers
from tammes.lab.training.run_folder import RunFolder, Which


def common_folder(paths: Sequence[Path]) -> Path:
    """The folder that contains all paths, or the only path, as a relative path if possible."""
    found = Path(os.path.commonpath([path.resolve() for path in paths]))
    return found if paths[0].is_absolute() else Path(os.path.relpath(found))


def finished_models(paths: Sequence[Path]) -> list[ModelResults]:
    """The distinct runs in `paths`, as evaluated when they finished, named by where their paths differ."""
    paths = list({path.resolve(): path for path in paths}.values())
    folders = [RunFolder(path) for path in paths]
    found = [_at_its_end(folder) for folder in folders]
    if len(paths) == 1:
        return found
    names = [os.path.relpath(path, common_folder(paths)) for path in paths]
    return [dataclasses.replace(s, name=name) for s, name in zip(found, names, strict=True)]


def _at_its_end(folder: RunFolder) -> ModelResults:
    metrics, arrays = folder.finished()["metrics"], folder.arrays
    if ("sample_margin" in arrays) != ("sample_margin" in metrics):
        raise ValueError(
            f"{folder.path / 'result.json'} and margins.npz do not match: one of them has no "
            "sample margins. Train the run again, or evaluate it with tammes inspect."
        )
    return _of_run(folder, metrics, arrays)


def measured(path: Path, *, which: Which, split: SplitName) -> ModelResults:
    """The run in `path`, evaluated again."""
    folder = RunFolder(path)
    evaluation = evaluate_run(folder, which=which, split=split, photos=True)
    found = _of_run(folder, evaluation.numbers(), evaluation.arrays, which)
    return dataclasses.replace(found, notes=[f"Measured on the {split} images, with the {which} weights."])


def _of_run(
    folder: RunFolder, numbers: dict[str, Any], arrays: dict[str, np.ndarray], which: Which = "last"
) -> ModelResults:
    facts, record = folder.facts, folder.result or _unfinished(folder)
    weight = folder.weights(which)["head.weight"].float() if folder.checkpoint() else None
    if weight is not None and "nearest_angle" not in arrays:  # measured on classes without prototypes
        neighbor, angle = nearest_prototypes(weight)
        arrays = arrays | {"nearest_class": neighbor.numpy(), "nearest_angle": angle.numpy()}
    return ModelResults(
        name=str(folder.path),
        data=facts.name,
        classes=facts.classes,
        dimensions=record["dimensions"] if weight is None else weight.shape[-1],
        numbers=numbers,
        arrays=arrays,
        prototypes=None if weight is None else weight.numpy(),
        epochs=_epochs(folder),
        record=record,
        verified=read_verified(folder),
    )


def _unfinished(folder: RunFolder) -> dict[str, Any]:
    config = folder.config
    return {"asked": config.asked.changed(), "config": config.settings()}


def _epochs(folder: RunFolder) -> list[dict[str, Any]]:
    """The numbers logged after each epoch. Lines without an epoch are skipped."""
    with reading(folder.log, "Training does not need it. Remove it to get a page without curves."):
        lines = [finite_numbers(line) for line in read_log(folder.log) if line["kind"] == "epoch"]
    return [line for line in lines if "epoch" in line]


def stored(path: Path) -> ModelResults:
    """The model whose embeddings are in an .npz file."""
    start = time.perf_counter()
    arrays = read_arrays(path, ("embeddings", "labels"), ("prototypes", "classes"))
    classes = arrays["classes"].tolist() if "classes" in arrays else None
    with reading(path, "Fix its arrays."):
        found = inspect(
            arrays["embeddings"], arrays["labels"], arrays.get("prototypes"), classes=classes, name=path.stem
        )
    config = {"file": path.name, "arrays": {name: list(array.shape) for name, array in arrays.items()}}
    record = {"config": config} | stamp(seconds=time.perf_counter() - start)
    return dataclasses.replace(found, record=record)
