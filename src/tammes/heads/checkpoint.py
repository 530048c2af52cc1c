"""Head checkpoints, readable at any world size: safetensors through `torch.distributed.checkpoint`.

A checkpoint is a folder with a manifest, `head.json`, and one file of rows per rank that wrote it. Loading
reads slices: each rank reads its own rows, however they were sharded when saved. The manifest has the SHA-256
of each file; the ranks share the work of computing and checking them.
"""

import json
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from tammes._common import tensor_checks
from tammes._common.files import publish_folder, temporary_name
from tammes._common.types import ClassPrototypes
from tammes.geometry.sphere import safe_norm
from tammes.heads._manifest import MANIFEST, STATE, Manifest, Stored, check_class_names, checksums
from tammes.heads._new_rows import unit_rows_away_from
from tammes.heads._ranks.collectives import gather_texts, reduce
from tammes.heads._ranks.handshake import together
from tammes.heads.prototype import PrototypeHead
from tammes.heads.sharded import ShardedPrototypeHead

SCALES = "scales."
"""Start of the names of the learned scales' optimizer state, after `STATE`."""

Result = TypeVar("Result")
Tensors = dict[str, Tensor]


def save_head(
    path: str | Path,
    head: PrototypeHead,
    *,
    optimizer: Optimizer | None = None,
    classes: Sequence[str] | None = None,
) -> None:
    """Save the prototypes, learned scales and, optionally, their optimizer state to a new folder.

    With a sharded head, all ranks must call it with a path on a shared file system. The folder appears only
    once it is complete. The optimizer's hyperparameters (its parameter groups) are not saved.

    Args:
        path: Folder to create; must not exist.
        head: The head to save.
        optimizer: Optimizer that holds `head.weight`.
        classes: Names of all classes, so that `load_head` can match rows by name.
    """
    rows, whole, manifest = _together(head, lambda: _contents(head, optimizer, classes))
    _write(Path(path), manifest, _split(head, rows) | whole, head)


def _contents(
    head: PrototypeHead, optimizer: Optimizer | None, classes: Sequence[str] | None
) -> tuple[Tensors, Tensors, Manifest]:
    """The tensors with one row per local prototype, the tensors shared by all ranks, and the manifest."""
    names = None if classes is None else check_class_names(classes, head.num_classes)
    rows, whole = {"weight": head.local_weight.detach()}, _beside_weight(head)
    if optimizer is not None:
        for name, value in _rows_of_state(head, optimizer).items():
            (rows if value.ndim else whole)[STATE + name] = value
        whole |= _scale_state(head, optimizer)
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
    path: str | Path,
    weight: ClassPrototypes,
    *,
    objective: str | None = None,
    classes: list[str] | None = None,
) -> Manifest:
    """Save prototypes without a head to a new folder, as `save_head` does, and return the manifest."""
    num_classes, _, in_features = tensor_checks.check_class_prototypes(weight)
    manifest = Manifest(
        num_classes=num_classes,
        in_features=in_features,
        objective=objective,
        classes=None if classes is None else check_class_names(classes, num_classes),
        shapes={"weight": list(weight.shape)},
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
    """Load a checkpoint into `head`, and optionally into `optimizer`; returns the manifest.

    The checkpoint may have been saved at any world size. With a sharded head, all ranks must call it.

    Args:
        path: Folder written by `save_head`.
        head: Head to load into.
        optimizer: Optimizer of the saved type that holds `head.weight`.
        classes: Names of the head's classes, to match rows by name. A class missing from the checkpoint gets
            a new prototype far from all others and zero optimizer state. Classes missing from the head are
            skipped. Without names, the head must have the same classes as the checkpoint.
    """
    manifest, stored = _together(head, lambda: _verified(Path(path), head, optimizer, classes))
    rows, whole = {"weight": head.local_weight.detach()}, {}
    if optimizer is not None:
        for name in filter(_is_state, manifest.shapes):
            room = _room(manifest.shapes[name], stored.dtype(name), head)
            (rows if room.ndim else whole)[name] = room
    same = classes is None or list(classes) == manifest.classes
    beside = {name: t for name, t in _beside_weight(head).items() if name in manifest.shapes}
    whole |= {name: t for name, t in beside.items() if same or not t.ndim}  # others have one row per class
    if same:
        _read(stored.folder, head, _split(head, rows) | whole)
    else:
        _read(stored.folder, head, whole)
        _fill_by_name(stored, manifest, head, rows, list(classes or []))
    found = rows | whole
    head.load_state_dict({name: t for name, t in found.items() if not _is_state(name)}, strict=False)
    if optimizer is not None:
        if isinstance(head, ShardedPrototypeHead) and head.mesh is not None:
            found |= {name: head.split_rows(t) for name, t in rows.items()}
        state = {name.removeprefix(STATE): t for name, t in found.items() if _is_state(name)}
        optimizer.state[head.weight] = {n: t for n, t in state.items() if not n.startswith(SCALES)}
        _load_scale_state(head, optimizer, state)
    return manifest


def _scale_state(head: PrototypeHead, optimizer: Optimizer) -> Tensors:
    """The optimizer state of the learned scales, single numbers."""
    return {
        f"{STATE}{SCALES}{key}.{name}": torch.as_tensor(value).detach()
        for key, scale in (head.scales or {}).items()
        for name, value in optimizer.state.get(scale, {}).items()
        if value is not None
    }


def _load_scale_state(head: PrototypeHead, optimizer: Optimizer, state: Tensors) -> None:
    """Give each learned scale its state, if the checkpoint has some for it."""
    for key, scale in (head.scales or {}).items():
        prefix = f"{SCALES}{key}."
        own = {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
        if own:
            moved = {name: t if name == "step" else t.to(scale.device) for name, t in own.items()}
            optimizer.state[scale] = moved  # torch keeps the step count on the CPU


def _is_state(name: str) -> bool:
    return name.startswith(STATE)


def _room(shape: list[int], dtype: torch.dtype, head: PrototypeHead) -> Tensor:
    """Zeros to load this rank's rows of a state into, or a scalar, which optimizers keep on the CPU."""
    if not shape:
        return torch.zeros((), dtype=dtype)
    return torch.zeros(len(head.local_weight), *shape[1:], dtype=dtype, device=head.weight.device)


def _beside_weight(head: PrototypeHead) -> Tensors:
    """The head's state other than the prototypes; the same on every rank."""
    return {name: tensor for name, tensor in head.state_dict().items() if name != "weight"}


def _rows_of_state(head: PrototypeHead, optimizer: Optimizer) -> Tensors:
    """The optimizer state of the prototypes: tensors with one row per prototype, and single numbers."""
    _check_holds(head, optimizer)
    values = {name: value for name, value in optimizer.state[head.weight].items() if value is not None}
    tensors = {name: torch.as_tensor(_local(value)).detach() for name, value in values.items()}
    own = len(head.local_weight)
    for name, tensor in tensors.items():
        if tensor.ndim and len(tensor) != own:
            raise ValueError(
                f"The optimizer's {name} must be a number or have one row for each of the {own} "
                f"prototypes, got shape {tuple(tensor.shape)}. Save without optimizer=."
            )
    return tensors


def _local(value: Any) -> Any:
    """The local shard of a DTensor; any other value unchanged."""
    return value.to_local() if hasattr(value, "to_local") else value


def _check_holds(head: PrototypeHead, optimizer: Optimizer) -> None:
    if not any(head.weight is p for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("The optimizer does not hold the head's weight. Add head.param_groups() to it.")


def _verified(
    folder: Path, head: PrototypeHead, optimizer: Optimizer | None, classes: Sequence[str] | None
) -> tuple[Manifest, Stored]:
    """The manifest and the stored files, after checking that they are complete and match the head."""
    manifest = Manifest.read(folder)
    if manifest.in_features != head.in_features:
        raise ValueError(
            f"The head has in_features={head.in_features}, the checkpoint in {folder} has "
            f"{manifest.in_features}."
        )
    centers = 1 if len(manifest.shapes["weight"]) == 2 else manifest.shapes["weight"][1]
    if centers != head.centers:
        raise ValueError(f"The head has centers={head.centers}, the checkpoint in {folder} has {centers}.")
    if classes is not None:
        check_class_names(classes, head.num_classes)
        if manifest.classes is None:
            raise ValueError(
                f"The checkpoint in {folder} has no class names. Load it without classes=, or save it again "
                "with save_head(..., classes=[...])."
            )
    elif manifest.num_classes != head.num_classes:
        raise ValueError(
            f"The head has {head.num_classes} classes, the checkpoint in {folder} has "
            f"{manifest.num_classes}. To match rows by name: load_head(..., classes=[...])."
        )
    if optimizer is not None:
        _check_holds(head, optimizer)
        if manifest.optimizer != type(optimizer).__name__:
            raise ValueError(
                f"Expected optimizer state of {type(optimizer).__name__}, the checkpoint in {folder} has "
                f"{manifest.optimizer or 'no optimizer'}. Load without optimizer= to start with fresh state."
            )
    stored = Stored.open(folder, manifest.shapes)
    manifest.check_files(folder, **_place(head))
    return manifest, stored


def _fill_by_name(
    stored: Stored, manifest: Manifest, head: PrototypeHead, rows: Tensors, classes: list[str]
) -> None:
    """Load the rows of classes in the checkpoint, and create new prototypes for the others."""
    known = {name: index for index, name in enumerate(manifest.classes or [])}
    first, last = head.class_range
    wanted = torch.tensor([known.get(name, -1) for name in classes[first:last]], dtype=torch.long)
    kept = wanted >= 0
    for name, tensor in rows.items():
        tensor[kept.to(tensor.device)] = stored.rows(name, wanted[kept]).to(tensor)
    _place_new_rows(head, kept.to(head.weight.device), [name not in known for name in classes])


def _place_new_rows(head: PrototypeHead, kept: Tensor, is_new: list[bool]) -> None:
    """Create prototypes far from those `kept` on any rank, with their mean norm."""
    first, last = head.class_range
    weight = head.local_weight.detach()
    others = weight[kept].flatten(0, -2)
    norms = safe_norm(others.double())
    lengths = torch.stack([norms.sum(), torch.ones_like(norms).sum()])
    total, count = _over_ranks(head, lengths, "SUM").tolist()
    seed = _over_ranks(head, torch.randint(2**62, (), device=weight.device), "MIN")
    away = unit_rows_away_from(
        others,
        sum(is_new) * head.centers,
        seed=int(seed),
        over_ranks=lambda values: _over_ranks(head, values, "MAX"),
    )
    own = away.view(-1, *weight.shape[1:])[sum(is_new[:first]) : sum(is_new[:last])]
    weight[~kept] = (total / count if count else 1.0) * own.to(weight)


def _over_ranks(head: PrototypeHead | None, values: Tensor, operation: str) -> Tensor:
    return reduce(values, operation, head.group) if isinstance(head, ShardedPrototypeHead) else values


def _split(head: PrototypeHead, rows: Tensors) -> dict[str, Any]:
    """A rank's rows as its shard of a DTensor, sharing memory; unchanged for an unsharded head."""
    if not isinstance(head, ShardedPrototypeHead):
        return dict(rows)
    return {name: head.split_rows(part) for name, part in rows.items()}


def _write(final: Path, manifest: Manifest, state: dict[str, Any], head: PrototypeHead | None) -> None:
    """Write `state` to a temporary folder and rename it once complete."""
    from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

    temporary = temporary_name(final, _agreed_token(head))
    _on_first(head, lambda: _make_room(final, temporary))
    try:
        with _plain_errors(f"{final} cannot be written"):
            writer = HuggingFaceStorageWriter(str(temporary), save_distributed=True)
            save(state, storage_writer=writer, **_ranks(head))
        sums = _together(head, lambda: checksums(temporary, **_place(head)))
        whole = manifest.with_checksums(_merged(sums, head))
        _on_first(head, lambda: _finish(final, temporary, whole))
    except BaseException:
        if _is_first(head):
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _agreed_token(head: PrototypeHead | None) -> str:
    """A random token, the same on every rank."""
    device = "cpu" if head is None else head.weight.device
    drawn = torch.tensor(secrets.randbits(62), device=device)
    return f"{int(_over_ranks(head, drawn, 'MIN')):016x}"


def _read(folder: Path, head: PrototypeHead, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    with _plain_errors(f"{folder} cannot be read"):
        load(state, storage_reader=HuggingFaceStorageReader(str(folder)), **_ranks(head))


@contextmanager
def _plain_errors(what: str) -> Iterator[None]:
    """Suppress torch's warning about single-process saves; report rank failures in one line."""
    from torch.distributed.checkpoint.api import CheckpointException  # not an Exception but a BaseException

    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
        raise OSError(f"{what}: on rank {rank} {type(cause).__name__}: {cause}") from error


def _merged(own: dict[str, str], head: PrototypeHead | None) -> dict[str, str]:
    """The entries of all ranks."""
    if not isinstance(head, ShardedPrototypeHead):
        return own
    texts = gather_texts(json.dumps(own), head.group, head.weight.device)
    return {name: value for text in texts for name, value in json.loads(text).items()}


def _place(head: PrototypeHead | None) -> dict[str, int]:
    if isinstance(head, ShardedPrototypeHead):
        return {"rank": dist.get_rank(head.group), "world_size": dist.get_world_size(head.group)}
    return {"rank": 0, "world_size": 1}


def _ranks(head: PrototypeHead | None) -> dict[str, Any]:
    if isinstance(head, ShardedPrototypeHead):
        return {"process_group": head.group}
    return {"no_dist": True}


def _make_room(final: Path, temporary: Path) -> None:
    if final.exists():
        raise FileExistsError(f"{final} already exists. Save to a new folder, then remove the old one.")
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary.mkdir()


def _finish(final: Path, temporary: Path, manifest: Manifest) -> None:
    """Check that the written files can be read, write the manifest, rename the folder."""
    Stored.open(temporary, manifest.shapes)
    (temporary / MANIFEST).write_text(json.dumps(asdict(manifest)))
    publish_folder(temporary, final)


def _together(head: PrototypeHead | None, action: Callable[[], Result]) -> Result:
    if isinstance(head, ShardedPrototypeHead):
        return together(action, head.group, head.weight.device)
    return action()


def _on_first(head: PrototypeHead | None, action: Callable[[], None]) -> None:
    """Run `action` on rank 0 while the others wait; a failure raises on every rank."""
    _together(head, action if _is_first(head) else lambda: None)


def _is_first(head: PrototypeHead | None) -> bool:
    return not isinstance(head, ShardedPrototypeHead) or dist.get_rank(head.group) == 0
