"""The folder of a run: its files, and how to create, read and resume it."""

import dataclasses
import hashlib
import io
import json
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

import tammes
from tammes._common import files
from tammes._common.checks import reading
from tammes.lab.data.arrays import read_arrays
from tammes.lab.training.classifier import Classifier, DataFacts, restored_classifier
from tammes.lab.training.config import Config, ResolvedConfig, read_resolved, resolve
from tammes.lab.training.record_checks import check_margins, check_result

Which = Literal["last", "best"]

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)-(\d+)")
KEPT = 2
"""Number of checkpoints to keep. If the last one is damaged, the run resumes from the one before."""

WRITTEN = (
    "checkpoint-",
    "best.safetensors",
    "log.jsonl",
    "config.json",
    "data.json",
    "margins.npz",
    "result.json",
)
"""Files that training writes."""

ORIGIN = {"tammes": tammes.__version__}
CHECKSUM = "sha256"
"""Metadata key of the checksum in a safetensors file."""


class Restored(NamedTuple):
    """A checkpoint, and any later, damaged ones with the reasons."""

    path: Path
    weights: dict[str, Tensor]
    state: dict[str, Any]
    damaged: dict[Path, str]


@dataclass(frozen=True)
class RunFolder:
    """The files of one run.

    `config.json`, `data.json` (classes and channel statistics), `log.jsonl`, the last two
    `checkpoint-EPOCH-STEP/` (`weights.safetensors`, `state.pt`, and `manifest.json` with their checksums),
    `best.safetensors`, and after the run `result.json` and `margins.npz`.
    """

    path: Path

    @property
    def config(self) -> ResolvedConfig:
        """The settings of the run; its `asked` are those it was started with."""
        self._check_there()
        return read_resolved(self.path / "config.json")

    @property
    def facts(self) -> DataFacts:
        self._check_there()
        with reading(self.path / "data.json"):
            return DataFacts.from_json(self._json("data.json"))

    @property
    def result(self) -> dict[str, Any] | None:
        """The record of the run; None if it is unfinished."""
        return self._json("result.json") if (self.path / "result.json").is_file() else None

    def finished(self) -> dict[str, Any]:
        """The record of the run; raise if it is unfinished."""
        self._check_there()
        if self.result is None:
            raise ValueError(f"{self.path} has no result yet. Finish it: {self.how_to_resume()}")
        check_result(self.path / "result.json", self.result)
        return self.result

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of the last evaluation, per sample and per class."""
        path = self.path / "margins.npz"
        arrays = read_arrays(path)
        check_margins(path, arrays, len(self.facts.classes))
        return arrays

    def _check_there(self) -> None:
        if not (self.path / "config.json").is_file():
            raise FileNotFoundError(f"{self.path} is not a run folder: it has no config.json.")

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    def _json(self, name: str) -> Any:
        return files.read_json(self.path / name)

    def check(self, config: Config, *, resume: bool) -> bool:
        """Whether there is a run to resume; raise if the folder belongs to another run."""
        if not (self.path / "config.json").exists():
            if (left := self.checkpoint()) is not None:
                raise FileExistsError(
                    f"{left} is in the way and does not belong to a run. Choose another folder with --out."
                )
            return False
        if not resume:
            raise FileExistsError(
                f"{self.path} already contains a run. Resume it: {self.how_to_resume()}. "
                "Or choose another folder with --out."
            )
        run = self.config
        if run.asked == config:
            return True
        stored, wanted = run.settings(), resolve(config).settings()
        other = [
            f"{name}={stored[name]!r}, not {wanted[name]!r}"
            for name in wanted
            if stored[name] != wanted[name]
        ]
        if other:
            raise ValueError(
                f"{self.path} contains a run with {'; '.join(other)}. Choose another folder with --out."
            )
        return True

    def start(self, config: ResolvedConfig, facts: DataFacts) -> None:
        """Write the initial files of a new run."""
        files.write_json(self.path / "data.json", dataclasses.asdict(facts))
        files.write_bytes(self.path / "config.json", config.to_json().encode())

    def how_to_resume(self) -> str:
        """The command that resumes this run."""
        return f"tammes train --resume --out {shlex.quote(str(self.path))}"

    def checkpoint(self) -> Path | None:
        """The last checkpoint; None before the first."""
        return next(iter(self.checkpoints()), None)

    def checkpoints(self) -> list[Path]:
        """All checkpoints, newest first."""
        found = [(CHECKPOINT.fullmatch(path.name), path) for path in self.path.glob("checkpoint-*")]
        numbered = [((int(match[1]), int(match[2])), path) for match, path in found if match]
        return [path for _, path in sorted(numbered, reverse=True)]

    def save(self, name: str, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Write the checkpoint `name`, keep the one before it and remove older ones."""
        target = self.path / name
        if not target.exists():
            buffer = io.BytesIO()
            torch.save(state, buffer)
            contents = {WEIGHTS: encode_tensors(weights, ORIGIN), STATE: buffer.getvalue()}
            sums = {name: files.sha256(content) for name, content in contents.items()}
            manifest = json.dumps(ORIGIN | {"sha256": sums}, indent=2).encode()
            files.write_folder(target, contents | {MANIFEST: manifest})
        for path in self.checkpoints()[KEPT:]:
            shutil.rmtree(path)

    def restore(self) -> "Restored | None":
        """The last intact checkpoint; None before the first."""
        damaged: dict[Path, str] = {}
        for path in self.checkpoints():
            try:
                weights, state = read_tensors(_whole(path, WEIGHTS)), read_state(_whole(path, STATE))
                return Restored(path, weights, state, damaged)
            except (ValueError, OSError) as error:
                damaged[path] = str(error)
        if damaged:
            names = " ".join(shlex.quote(str(path)) for path in damaged)
            raise ValueError(
                f"No checkpoint of {self.path} is intact: {' '.join(damaged.values())} Restore a copy, or "
                f"train from the start: rm -r {names}; {self.how_to_resume()}"
            )
        return None

    def set_aside(self, checkpoint: Path) -> Path:
        """Rename a damaged checkpoint so that it is no longer found."""
        aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
        shutil.rmtree(aside, ignore_errors=True)
        return checkpoint.rename(aside)

    def remove_leftovers(self) -> None:
        """Remove partially written files of a killed run. Only for the process that holds the lock."""
        for name in WRITTEN:
            for path in self.path.glob(f".{name}*.tmp"):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def save_best(self, weights: dict[str, Tensor]) -> None:
        """Save the best weights so far."""
        write_tensors(self.path / "best.safetensors", weights, ORIGIN)

    def save_result(self, result: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Write the result of the finished run."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        files.write_bytes(self.path / "margins.npz", buffer.getvalue())
        files.write_json(self.path / "result.json", result)

    def weights(self, which: Which = "last") -> dict[str, Tensor]:
        """The weights of the last checkpoint, or of the best evaluation."""
        checkpoint = self.checkpoint()
        if checkpoint is None:
            raise FileNotFoundError(f"{self.path} has no checkpoint yet. Train it: {self.how_to_resume()}")
        best = self.path / "best.safetensors"
        chosen = which == "best" and best.is_file()  # a run without training has none
        return read_tensors(best) if chosen else self._last_weights(checkpoint)

    def _last_weights(self, checkpoint: Path) -> dict[str, Tensor]:
        try:
            return read_tensors(_whole(checkpoint, WEIGHTS))
        except ValueError as error:
            older = self.checkpoints()[1:]
            way = f" To use the one before, {older[0].name}: rm -r {checkpoint}" if older else ""
            raise ValueError(f"{error}{way}") from error

    def classifier(self, which: Which = "last") -> Classifier:
        """The trained classifier, in evaluation mode on the CPU."""
        with reading(self.path, "Its config.json, data.json and weights do not match."):
            return restored_classifier(self.config, self.facts, self.weights(which))


def _whole(checkpoint: Path, name: str) -> Path:
    """A file of a checkpoint, verified by the checksum in the manifest. Older versions wrote no manifest."""
    path, manifest = checkpoint / name, checkpoint / MANIFEST
    if manifest.is_file():
        try:
            expected = files.read_json(manifest)["sha256"][name]
        except (TypeError, KeyError) as error:
            raise ValueError(f"{manifest} has no checksum of {name}.") from error
        if files.sha256(path.read_bytes()) != expected:
            raise ValueError(f"{path} cannot be read: {files.WRONG_CHECKSUM}")
    return path


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write named tensors to a safetensors file."""
    files.write_bytes(path, encode_tensors(tensors, metadata))


def encode_tensors(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Encode named tensors and their checksum as safetensors. Tensors that share memory are copied."""
    plain = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    return save(plain, metadata | {CHECKSUM: _checksum(plain)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a safetensors file. Files of older versions have no checksum."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            stored = (file.metadata() or {}).get(CHECKSUM)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}. Is it truncated?") from error
    if stored is not None and stored != _checksum(tensors):
        raise ValueError(f"{path} cannot be read: {files.WRONG_CHECKSUM}")
    return tensors


def _checksum(tensors: dict[str, Tensor]) -> str:
    """Checksum of names, dtypes, shapes and values."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def read_state(path: Path) -> dict[str, Any]:
    """Load a `torch.save` file of tensors and plain values; never unpickles code."""
    content = path.read_bytes()
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged archives raise many kinds of errors
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read: {reason} Is it truncated?") from error


def run_folders(paths: Sequence[str]) -> list[Path]:
    """The named runs, and the runs inside named folders. Other files are ignored."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(config.parent for config in path.glob("*/config.json"))
        if inside and not (path / "config.json").is_file():
            found += inside
        elif path.suffix != ".html":
            found.append(path)
    return found


def next_folder(stem: Path) -> Path:
    """The first of stem-1, stem-2, ... that does not exist."""
    number = 1
    while (path := stem.with_name(f"{stem.name}-{number}")).exists():
        number += 1
    return path
