"""A run is a folder: what lies in it, and how it is opened, read and extended."""

import dataclasses
import io
import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import tammes
from tammes.data.arrays import read_arrays
from tammes.training.classifier import Classifier, DataFacts, build_classifier
from tammes.training.config import Config, read_config
from tammes.training.storage import read_state, read_tensors, write_bytes, write_json, write_tensors

Which = Literal["last", "best"]


@dataclass(frozen=True)
class RunFolder:
    """The files of one run.

    `config.json`, `data.json` (classes and statistics), `log.jsonl`, `checkpoint-EPOCH-STEP/` (the last one:
    `weights.safetensors` and `state.pt`), `best.safetensors`, and when the run is over `result.json` and
    `margins.npz`.
    """

    path: Path

    @property
    def config(self) -> Config:
        self._check_there()
        return read_config(self.path / "config.json")

    @property
    def facts(self) -> DataFacts:
        self._check_there()
        return DataFacts.from_json(self._json("data.json"))

    @property
    def result(self) -> dict[str, Any] | None:
        """The record of a run that is over."""
        return self._json("result.json") if (self.path / "result.json").is_file() else None

    def finished(self) -> dict[str, Any]:
        """The record of a run that must be over."""
        self._check_there()
        if self.result is None:
            raise ValueError(f"{self.path} has no result yet. Finish it: {self.how_to_resume()}")
        if "metrics" not in self.result:
            raise ValueError(f"{self.path / 'result.json'} is no record of a run: it has no metrics.")
        return self.result

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What the last evaluation kept of every sample and class."""
        return read_arrays(self.path / "margins.npz")

    def _check_there(self) -> None:
        if not (self.path / "config.json").is_file():
            raise FileNotFoundError(f"{self.path} holds no run: there is no config.json in it.")

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    def _json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.path / name} is not JSON: {error}.") from error

    def check(self, config: Config, *, resume: bool) -> bool:
        """Whether there is a run here to go on with; another run's folder is refused."""
        if not (self.path / "config.json").exists():
            if (left := self.checkpoint()) is not None:
                raise FileExistsError(f"{left} belongs to no run here. Choose another folder with --out.")
            return False
        if not resume:
            raise FileExistsError(
                f"{self.path} holds a run already. Go on with it: {self.how_to_resume()}. "
                "Or choose another folder with --out."
            )
        stored, wanted = dataclasses.asdict(self.config), dataclasses.asdict(config)
        other = [
            f"{name}={stored[name]!r}, not {wanted[name]!r}"
            for name in wanted
            if stored[name] != wanted[name]
        ]
        if other:
            raise ValueError(
                f"{self.path} holds a run with {'; '.join(other)}. Choose another folder with --out."
            )
        return True

    def start(self, config: Config, facts: DataFacts) -> None:
        """Make the folder of a new run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"Cannot make the folder {self.path}: {error.strerror}.") from error
        write_json(self.path / "data.json", dataclasses.asdict(facts))
        write_bytes(self.path / "config.json", config.to_json().encode())

    def how_to_resume(self) -> str:
        """The command that goes on with this run."""
        return f"tammes train --resume --out {shlex.quote(str(self.path))}"

    def checkpoint(self) -> Path | None:
        """The last checkpoint, None before the first."""
        return max(self.path.glob("checkpoint-*-*"), default=None)

    def save(self, name: str, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Make a checkpoint `name` the last one; whenever this is cut short, there is a whole one."""
        target, temporary = self.path / name, self.path / f".{name}.tmp"
        older = [p for p in self.path.glob("checkpoint-*-*") if p != target]
        if not target.exists():
            for left in self.path.glob(".checkpoint-*.tmp"):
                shutil.rmtree(left)
            temporary.mkdir()
            write_tensors(temporary / "weights.safetensors", weights, {"tammes": tammes.__version__})
            buffer = io.BytesIO()
            torch.save(state, buffer)
            write_bytes(temporary / "state.pt", buffer.getvalue())
            temporary.rename(target)
        for path in older:
            shutil.rmtree(path)

    def restore(self, checkpoint: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights and state of a checkpoint."""
        return read_tensors(checkpoint / "weights.safetensors"), read_state(checkpoint / "state.pt")

    def save_best(self, weights: dict[str, Tensor]) -> None:
        """Keep the weights that did best so far."""
        write_tensors(self.path / "best.safetensors", weights, {"tammes": tammes.__version__})

    def save_result(self, result: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """The end of the run."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        write_bytes(self.path / "margins.npz", buffer.getvalue())
        write_json(self.path / "result.json", result)

    def weights(self, which: Which = "last") -> dict[str, Tensor]:
        """The weights of the last checkpoint, or the best ones."""
        checkpoint = self.checkpoint()
        if checkpoint is None:
            raise FileNotFoundError(f"{self.path} has no checkpoint yet. Train it: {self.how_to_resume()}")
        best = self.path / "best.safetensors"
        chosen = which == "best" and best.is_file()  # a run in which nothing learns has none
        return read_tensors(best if chosen else checkpoint / "weights.safetensors")

    def classifier(self, which: Which = "last") -> Classifier:
        """The trained classifier, in evaluation mode on the CPU."""
        # What starts weights is left out, as they are overwritten: no packing, no fetching.
        config = dataclasses.replace(self.config, prototype_init="random", pretrained=None)
        classifier = build_classifier(config, self.facts)
        classifier.load_state_dict(self.weights(which))
        return classifier.eval()


def run_folders(paths: Sequence[str]) -> list[Path]:
    """The runs that are named, and those in folders that hold runs; a page among them is passed over."""
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
