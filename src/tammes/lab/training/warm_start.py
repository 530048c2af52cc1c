"""Initialize a run from the weights of another one."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tammes._common.types import ClassPrototypes
from tammes._common.wording import few
from tammes.geometry.sphere import safe_norm
from tammes.heads._new_rows import unit_rows_away_from
from tammes.lab.data import DataSet
from tammes.lab.training.classifier import DataFacts
from tammes.lab.training.config import ConfigFields, ResolvedConfig
from tammes.lab.training.run_folder import RunFolder


def starting_weights(config: ResolvedConfig, facts: DataFacts) -> dict[str, Tensor]:
    """The weights of the run in `config.start` to initialize a run of `config` with.

    These are the backbone and, unless `fresh_prototypes`, the prototypes of the classes of the same name,
    each divided by its norm to the power tau. The run in `start` must be finished and have the same backbone.
    """
    assert config.start is not None
    folder = RunFolder(Path(config.start))
    _check_same_backbone(folder, config, facts)
    folder.finished()
    weights = folder.weights()
    taken = {name: value for name, value in weights.items() if name.startswith("backbone.")}
    if config.fresh_prototypes:
        return taken
    if folder.config.centers != config.centers:
        raise ValueError(
            f"{folder.path} has centers={folder.config.centers}, this run centers={config.centers}. "
            "Pass --fresh-prototypes to start with new ones."
        )
    prototypes = weights["head.weight"]
    known = prototypes / safe_norm(prototypes) ** config.tau
    return taken | {"head.weight": _by_name(facts.classes, folder.facts.classes, known, config.seed)}


def _by_name(
    classes: tuple[str, ...], theirs: tuple[str, ...], prototypes: ClassPrototypes, seed: int
) -> Float[Tensor, "classes *c d"]:
    """The prototypes of classes of the same name. Those of new classes are spread away from all others."""
    if classes == theirs:
        return prototypes
    places = {name: place for place, name in enumerate(theirs)}
    known = torch.tensor([name in places for name in classes])
    old = prototypes[[places[name] for name in classes if name in places]]
    rows = prototypes.new_empty(len(classes), *prototypes.shape[1:])
    rows[known] = old
    new = rows[~known]
    count = new.shape[:-1].numel()
    away = unit_rows_away_from(old.flatten(0, -2), count, seed=seed, over_ranks=lambda nearest: nearest)
    rows[~known] = away.view_as(new) * safe_norm(prototypes).mean()
    return rows


def as_before(dataset: DataSet, run: RunFolder) -> DataSet:
    """`dataset` for a resumed run; raise if it differs from the run's data."""
    now, then = DataFacts.of(dataset), run.facts
    for name in ("classes", "shape", "class_counts"):
        old, new = getattr(then, name), getattr(now, name)
        if old != new:
            raise ValueError(
                f"{run.path} was started with other data: {name.replace('_', ' ')} {_short(old)}, now "
                f"{_short(new)}. Restore its data, or start a new run with another --out."
            )
    return seen_as_by(dataset, run)


def _short(values: tuple[Any, ...]) -> str:
    return few([str(value) for value in values])


def seen_as_by(dataset: DataSet, run: RunFolder) -> DataSet:
    """`dataset` with the channel statistics that the network of `run` was trained with."""
    return replace(dataset, mean=run.facts.mean, std=run.facts.std)


def _check_same_backbone(folder: RunFolder, config: ResolvedConfig, facts: DataFacts) -> None:
    theirs, shape = folder.config, folder.facts.shape
    if _backbone(theirs) != _backbone(config):
        raise ValueError(
            f"{folder.path} has the backbone {_backbone(theirs)}, this run {_backbone(config)}. "
            "Start from a run with the same backbone."
        )
    if shape[0] != facts.shape[0]:
        raise ValueError(f"{folder.path} has images of {shape[0]} channels, this run has {facts.shape[0]}.")


def _backbone(config: ResolvedConfig) -> str:
    """Name of the backbone, with the non-default settings that determine its layers."""
    usual = {f.name: f.default for f in fields(ConfigFields)}
    own = [(name, getattr(config, name)) for name in ("embedding", "neck", "last_stride")]
    rest = ", ".join(f"{name}={value}" for name, value in own if value not in (usual[name], False))
    return f"{config.model} with {rest}" if rest else config.model


def check_fits(weights: Mapping[str, Tensor], network: Mapping[str, Tensor], start: str) -> None:
    """Check that `weights` have the shapes of `network`, which may depend on the image size."""
    for name, value in weights.items():
        if network[name].shape != value.shape:
            raise ValueError(
                f"{start} has {name} of shape {tuple(value.shape)}, this run {tuple(network[name].shape)}. "
                "Use images of the size it was trained with."
            )
