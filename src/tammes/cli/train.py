"""`tammes train`: images to a trained classifier in a folder."""

import argparse
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tammes.cli import flags
from tammes.training.config import Config, read_config, unsettled


@dataclass(frozen=True, kw_only=True)
class Train(Config):
    """Train a classifier on a folder of images or a named data set.

    The run is a folder: config.json, log.jsonl, checkpoints, result.json, margins.npz. Killed or
    interrupted, it goes on with --resume to the very same end. Several processes or machines:
    torchrun --nproc-per-node 2 -m tammes.cli train ...

    examples:
      tammes train digits --model cnn4-hidden --epochs 10
      tammes train ./photos --objective "CosFace(s=16, m=0.2) + 0.5*R_sm" --minutes 20
      tammes train cifar10 --data-root data --download --model timm/resnet18 --out runs/cifar10
      tammes train cifar10 --imbalance long_tailed:100 --objective "LMSoftmax(s=5) + 1000*R_w"
      tammes train --resume --out runs/cifar10
      tammes train --config runs/cifar10/config.json --seed 1 --out runs/cifar10-seed1
      tammes train market1501 --data-root data --preset reid-laptop --out runs/market
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """digits, mnist, fashion-mnist, cifar10, cifar100, market1501, dukemtmc-reid, lfw-view1, an .npz file, a
    folder of images or records, a .txt list of images, or a .csv list of people and cameras."""
    out: str | None = None
    """Folder of the run; by default the next free of runs/DATA-1, runs/DATA-2, ..."""
    resume: bool = False
    """Go on with the run in --out, or start it if there is none."""
    config: str | None = None
    """A config.json to start from; other flags change it."""
    preset: str | None = None
    """Settings by name to start from, as reid-laptop or face-laptop; other flags change them."""
    json: bool = False
    """Print the result as JSON."""

    @classmethod
    def from_args(cls, words: list[str]) -> "Train":
        """Flags over the settings of `--config` or `--preset`, or over those of the run that is resumed."""
        known = _peek(words)
        path = _stored_config(known)
        if path is None and known.preset:
            from tammes.recipes.presets import preset

            return flags(cls, "train", words, cls(**preset(known.preset)))
        if path is None:
            return flags(cls, "train", words)
        config = read_config(path)
        settings = _settings(config)
        settings.update(dict.fromkeys(unsettled(config)))  # so that these follow from what the flags change
        return flags(cls, "train", words, cls(**settings))

    def __post_init__(self) -> None:
        """Nothing: `run` makes the config, whose complaints are then one line."""

    def run(self) -> int:
        from tammes.cli.tables import print_result
        from tammes.training.folder import next_folder
        from tammes.training.loop import train
        from tammes.training.progress import Terminal

        out = Path(self.out) if self.out else next_folder(Path("runs") / Path(self.data).resolve().stem)
        _check_outside(out, Path(self.data))
        config = Config(**_settings(self))
        if os.environ.get("RANK", "0") != "0":
            train(config, out, resume=self.resume)
            return 0
        with Terminal(out.name) as terminal:
            result = train(config, out, resume=self.resume, sinks=[terminal])
        if self.json:
            print(json.dumps(result))
        else:
            print_result(result)
            print(f"The run is in {out}.")
        return 0


def _check_outside(out: Path, data: Path) -> None:
    """A folder of images has a folder for each class; a run among them would be taken for one."""
    if data.is_dir() and out.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"The run would lie among the images, in {out}. Choose a folder outside with --out.")


def _settings(config: Config) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)}


def _peek(words: list[str]) -> argparse.Namespace:
    """The flags that say what the others change."""
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--config", "--preset", "--out"):
        peek.add_argument(flag)
    peek.add_argument("--resume", action="store_true")
    known, _ = peek.parse_known_args(words)
    if known.config and known.preset:
        raise ValueError("--config and --preset are both settings to start from. Give one of them.")
    if known.resume and not known.out:
        raise ValueError("--resume goes on with the run in a folder. Name it with --out.")
    return known


def _stored_config(known: argparse.Namespace) -> Path | None:
    """The config that the flags change: `--config`'s, or with `--resume` that of the run in `--out`."""
    if known.config:
        return Path(known.config)
    if known.resume and known.out:
        there = Path(known.out) / "config.json"
        return there if there.is_file() else None
    return None
