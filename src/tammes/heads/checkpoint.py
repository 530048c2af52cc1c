"""Checkpoints of a head that any number of ranks can read: safetensors, by `torch.distributed.checkpoint`.

A checkpoint is a folder: a manifest, `head.json`, and from each rank that wrote it a file with its rows. They
are read by slices: each rank reads its own rows, however they were split before.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from tammes import checks
from tammes.geometry.sphere import safe_norm
from tammes.heads.agreement import together
from tammes.heads.collectives import reduce
from tammes.heads.manifest import MANIFEST, STATE, Manifest, Stored, check_names
from tammes.heads.new_rows import unit_rows_away_from
from tammes.heads.prototype import PrototypeHead
from tammes.heads.sharded import ShardedPrototypeHead
from tammes.types import Prototypes

Result = TypeVar("Result")
Tensors = dict[str, Tensor]


def save_head(
    path: str | Path,
    head: PrototypeHead,
    *,
    optimizer: Optimizer | None = None,
    classes: Sequence[str] | None = None,
) -> None:
    """Write the prototypes, and with an `optimizer` its state of their rows, to the new folder `path`.

    With a sharded head all ranks call it, on a file system that they share. The folder appears when it is
    whole. Hyperparameters of the optimiser (its groups) are not the head's and not in it.

    Args:
        path: a folder that does not exist.
        head: a `PrototypeHead` or a `ShardedPrototypeHead`.
        optimizer: one that holds `head.weight`.
        classes: the names of all classes, by which their rows can be found again among other classes.
    """
    rows, whole, manifest = _together(head, lambda: _contents(head, optimizer, classes))
    _write(Path(path), manifest, _split(head, rows) | whole, head)


def _contents(
    head: PrototypeHead, optimizer: Optimizer | None, classes: Sequence[str] | None
) -> tuple[Tensors, Tensors, Manifest]:
    """What has a row for each prototype of this rank, what all ranks have alike, and the manifest."""
    names = None if classes is None else check_names(classes, head.num_classes)
    rows, whole = {"weight": head.weight.detach()}, _beside_weight(head)
    state = {} if optimizer is None else _rows_of_state(head, optimizer)
    for name, value in state.items():
        (rows if value.ndim else whole)[STATE + name] = value
    manifest = Manifest(
        num_classes=head.num_classes,
        in_features=head.in_features,
        objective=str(head.objective),
        classes=names,
        shapes={name: [head.num_classes, *tensor.shape[1:]] for name, tensor in rows.items()}
        | {name: list(tensor.shape) for name, tensor in whole.items()},
        optimizer=None if optimizer is None else type(optimizer).__name__,
    )
    return rows, whole, manifest


def save_prototypes(
    path: str | Path, weight: Prototypes, *, objective: str | None = None, classes: list[str] | None = None
) -> Manifest:
    """Write prototypes that have no head to the new folder `path`, as `save_head` does; the manifest."""
    num_classes, in_features = checks.check_prototypes(weight)
    manifest = Manifest(
        num_classes=num_classes,
        in_features=in_features,
        objective=objective,
        classes=None if classes is None else check_names(classes, num_classes),
        shapes={"weight": [num_classes, in_features]},
        optimizer=None,
    )
    _write(Path(path), manifest, {"weight": weight.detach()}, head=None)
    return manifest


def load_head(
    path: str | Path,
    head: PrototypeHead,
    *,
    optimizer: Optimizer | None = None,
    classes: Sequence[str] | None = None,
) -> Manifest:
    """Read a checkpoint into `head`, and the state of its rows into `optimizer`; what the manifest says.

    It does not matter on how many ranks it was written. With a sharded head all ranks call it.

    Args:
        path: a folder that `save_head` wrote.
        head: where to put the prototypes.
        optimizer: one of the class that was saved, holding `head.weight`.
        classes: the names of the head's classes. Rows are then found by name: of a name that the
            checkpoint lacks they start away from all others, with an optimiser state of zeros; those of a
            name that the head lacks are left behind. Without names the classes must be the saved ones.
    """
    manifest, stored = _together(head, lambda: _verified(Path(path), head, optimizer, classes))
    rows, whole = {"weight": head.weight.detach()}, {}
    if optimizer is not None:
        for name in filter(_is_state, manifest.shapes):
            room = _room(manifest.shapes[name], stored.dtype(name), head)
            (rows if room.ndim else whole)[name] = room
    if classes is None or list(classes) == manifest.classes:
        whole |= {name: t for name, t in _beside_weight(head).items() if name in manifest.shapes}
        _read(stored.folder, head, _split(head, rows) | whole)
    else:
        _read(stored.folder, head, whole)
        _fill_by_name(stored, manifest, head, rows, list(classes))
    found = rows | whole
    head.load_state_dict({name: t for name, t in found.items() if not _is_state(name)}, strict=False)
    if optimizer is not None:
        state = {name.removeprefix(STATE): t for name, t in found.items() if _is_state(name)}
        optimizer.state[head.weight] = state
    return manifest


def _is_state(name: str) -> bool:
    return name.startswith(STATE)


def _room(shape: list[int], dtype: torch.dtype, head: PrototypeHead) -> Tensor:
    """Zeros for this rank's rows of a state, or for a single number, which optimisers keep on the CPU."""
    if not shape:
        return torch.zeros((), dtype=dtype)
    return torch.zeros(len(head.weight), *shape[1:], dtype=dtype, device=head.weight.device)


def _beside_weight(head: PrototypeHead) -> Tensors:
    """What a head remembers besides the prototypes, the same on every rank."""
    return {name: tensor for name, tensor in head.state_dict().items() if name != "weight"}


def _rows_of_state(head: PrototypeHead, optimizer: Optimizer) -> Tensors:
    """The optimiser's state of the prototypes: tensors with their rows, and single numbers."""
    _check_holds(head, optimizer)
    values = {name: value for name, value in optimizer.state[head.weight].items() if value is not None}
    tensors = {name: torch.as_tensor(value).detach() for name, value in values.items()}
    for name, tensor in tensors.items():
        if tensor.ndim and len(tensor) != len(head.weight):
            raise ValueError(
                f"The optimizer's {name} must be a number or have a row for each of the {len(head.weight)} "
                f"prototypes, got shape {tuple(tensor.shape)}. Save without optimizer=."
            )
    return tensors


def _check_holds(head: PrototypeHead, optimizer: Optimizer) -> None:
    if not any(head.weight is p for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("The optimizer does not hold the head's weight. Add head.param_groups() to it.")


def _verified(
    folder: Path, head: PrototypeHead, optimizer: Optimizer | None, classes: Sequence[str] | None
) -> tuple[Manifest, Stored]:
    """The manifest and the files, if they are whole and fit."""
    manifest = Manifest.read(folder)
    if manifest.in_features != head.in_features:
        raise ValueError(
            f"The head has {head.in_features} dimensions, the checkpoint in {folder} {manifest.in_features}."
        )
    if classes is not None:
        check_names(classes, head.num_classes)
        if manifest.classes is None:
            raise ValueError(f"The checkpoint in {folder} was saved without the names of its classes.")
    elif manifest.num_classes != head.num_classes:
        raise ValueError(
            f"The head has {head.num_classes} classes, the checkpoint in {folder} {manifest.num_classes}. "
            "Give the names of the head's classes to find their rows: load_head(..., classes=[...])."
        )
    if optimizer is not None:
        _check_holds(head, optimizer)
        if manifest.optimizer != type(optimizer).__name__:
            raise ValueError(
                f"Expected the state of {type(optimizer).__name__}, the checkpoint in {folder} has that of "
                f"{manifest.optimizer or 'no optimizer'}. Load without optimizer= to start it anew."
            )
    return manifest, Stored.open(folder, manifest.shapes)


def _fill_by_name(
    stored: Stored, manifest: Manifest, head: PrototypeHead, rows: Tensors, classes: list[str]
) -> None:
    """Rows of classes that the checkpoint knows from there, new prototypes for the others."""
    known = {name: index for index, name in enumerate(manifest.classes or [])}
    first, last = head.class_range
    wanted = torch.tensor([known.get(name, -1) for name in classes[first:last]], dtype=torch.long)
    kept = wanted >= 0
    for name, tensor in rows.items():
        tensor[kept.to(tensor.device)] = stored.rows(name, wanted[kept]).to(tensor)
    _place_new_rows(head, kept.to(head.weight.device), [name not in known for name in classes])


def _place_new_rows(head: PrototypeHead, kept: Tensor, is_new: list[bool]) -> None:
    """Prototypes away from those that are `kept` on any rank, and as long as they are on average."""
    first, last = head.class_range
    weight = head.weight.detach()
    others = weight[kept]
    lengths = torch.stack([safe_norm(others.double()).sum(), kept.double().sum()])
    total, count = _over_ranks(head, lengths, "SUM").tolist()
    seed = _over_ranks(head, torch.randint(2**62, (), device=weight.device), "MIN")
    away = unit_rows_away_from(
        others, sum(is_new), seed=int(seed), over_ranks=lambda values: _over_ranks(head, values, "MAX")
    )
    own = away[sum(is_new[:first]) : sum(is_new[:last])]
    weight[~kept] = (total / count if count else 1.0) * own.to(weight)


def _over_ranks(head: PrototypeHead, values: Tensor, operation: str) -> Tensor:
    return reduce(values, operation, head.group) if isinstance(head, ShardedPrototypeHead) else values


def _split(head: PrototypeHead, rows: Tensors) -> dict[str, Any]:
    """A rank's rows as its part of a tensor over all ranks, in the same memory."""
    if not isinstance(head, ShardedPrototypeHead):
        return dict(rows)
    from torch.distributed.tensor import DeviceMesh, DTensor, Shard

    mesh = DeviceMesh.from_group(head.group, head.weight.device.type)
    parts = {}
    for name, part in rows.items():
        whole = torch.empty(head.num_classes, *part.shape[1:], device="meta")
        parts[name] = DTensor.from_local(
            part, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )
    return parts


def _write(final: Path, manifest: Manifest, state: dict[str, Any], head: PrototypeHead | None) -> None:
    """Put `state` where nobody looks, and give it its name when it is whole."""
    from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

    temporary = final.with_name(f".{final.name}.tmp")
    _on_first(head, lambda: _make_room(final, temporary))
    with warnings.catch_warnings(action="ignore"):  # that a plain head is saved by one process
        writer = HuggingFaceStorageWriter(str(temporary), save_distributed=True)
        save(state, storage_writer=writer, **_ranks(head))
    _on_first(head, lambda: _finish(final, temporary, manifest))


def _read(folder: Path, head: PrototypeHead, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    with warnings.catch_warnings(action="ignore"):
        load(state, storage_reader=HuggingFaceStorageReader(str(folder)), **_ranks(head))


def _ranks(head: PrototypeHead | None) -> dict[str, Any]:
    if isinstance(head, ShardedPrototypeHead):
        return {"process_group": head.group}
    return {"no_dist": True}


def _make_room(final: Path, temporary: Path) -> None:
    if final.exists():
        raise FileExistsError(f"{final} exists already. Save to a new folder and remove the old one after.")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)


def _finish(final: Path, temporary: Path, manifest: Manifest) -> None:
    """Check that what was written can be read, write the manifest, give the folder its name."""
    Stored.open(temporary, manifest.shapes)
    with (temporary / MANIFEST).open("w") as file:
        json.dump(asdict(manifest), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(final)


def _together(head: PrototypeHead | None, action: Callable[[], Result]) -> Result:
    if isinstance(head, ShardedPrototypeHead):
        return together(action, head.group, head.weight.device)
    return action()


def _on_first(head: PrototypeHead | None, action: Callable[[], None]) -> None:
    """On the first rank alone, while the others wait; what goes wrong there is raised on all."""
    first = not isinstance(head, ShardedPrototypeHead) or dist.get_rank(head.group) == 0
    _together(head, action if first else lambda: None)
