"""`tammes train`: train a classifier into a run folder."""

import dataclasses
import json
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from tammes._common.terminal import printable
from tammes.lab.cli import UsageError, flags, typed
from tammes.lab.training.config import Config, ConfigFields, read_config

OPTION_GROUPS = {
    title: tuple(names.split())
    for title, names in {
        "data": "data_root download image_size max_unreadable augment augment_style mixup",
        "model and objective": "objective model embedding pretrained from_scratch frozen_start neck"
        " last_stride triplet triplet_margin",
        "prototypes": "centers prototype_init prototype_lr prototype_weight_decay trainable_prototypes"
        " unit_prototypes margin_warmup sample_rate",
        "schedule": "epochs minutes patience evaluate_every hold_out batch_size accumulate schedule warmup"
        " milestones",
        "optimizer": "optimizer lr momentum nesterov weight_decay norm_bias_factor clip",
        "imbalanced classes": "imbalance sampling images_per_person class_weights effective_beta"
        " reweight_from logit_adjustment",
        "second stages": "start learns fresh_prototypes tau shift_batch_norm",
        "machine": "device workers autocast compile test_flip seed deterministic",
        "output": "out resume config preset json log_every checkpoint_seconds track",
    }.items()
}
"""How `tammes train --help-all` sorts the options."""

FIRST_OPTIONS = frozenset(
    {"data_root", "image_size", "objective", "model", "epochs", "minutes", "batch_size", "lr"}
    | {"imbalance", "sampling", "out", "resume", "preset", "seed", "device"}
)
"""What `tammes train --help` shows."""


@dataclass(frozen=True, kw_only=True)
class Train(ConfigFields):
    """Train a classifier on a folder of images or a named data set.

    A run is a folder with config.json, log.jsonl, checkpoints, result.json and margins.npz. An interrupted
    run continues with --resume and, with the same number of threads and processes, ends with the same
    result bit for bit.

    For several processes or machines:

      torchrun --nproc-per-node 2 -m tammes train ...

    The run fails if a rank does not respond within TAMMES_TIMEOUT_MINUTES (default 10).

    examples:
      tammes train digits --model cnn4-hidden --epochs 10
      tammes train ./photos --objective "CosFace(s=16, m=0.2) + 0.5*R_sm" --minutes 20
      tammes train cifar10 --data-root data --download --model timm/resnet18 --out runs/cifar10
      tammes train cifar10 --imbalance long_tailed:100 --objective "LMSoftmax(s=5) + 1000*R_w"
      tammes train --resume --out runs/cifar10
      tammes train --config runs/cifar10/config.json --seed 1 --out runs/cifar10-seed1
      tammes train market1501 --data-root data --preset reid-laptop --out runs/market
    """

    first_options: ClassVar[frozenset[str]] = FIRST_OPTIONS
    option_groups: ClassVar[dict[str, tuple[str, ...]]] = OPTION_GROUPS

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""
    """A folder of images (CLASS/image.jpg), a named data set (digits, mnist, fashion-mnist, cifar10,
    cifar100, market1501, dukemtmc-reid, lfw-view1), an .npz file, a folder of insightface records, a .txt
    image list, or a .csv list of people and cameras."""
    out: str | None = None
    """Run folder. Default: the first of runs/DATA-1, runs/DATA-2, ... that does not exist."""
    resume: bool = False
    """Resume the run in --out, or start it if it does not exist."""
    config: str | None = None
    """Start from the settings of this config.json; other flags override them."""
    preset: str | None = None
    """Start from a named preset, for example reid-laptop or face-laptop; other flags override it."""
    json: bool = False
    """Print the result as JSON."""

    @classmethod
    def from_args(cls, words: list[str]) -> "Train":
        """Flags override the settings of `--config`, `--preset` or the run that is resumed."""
        words = _with_value(words, "--pretrained", "timm")
        words = _with_value(
            ["--neck=False" if word == "--no-neck" else word for word in words], "--neck", "True"
        )
        given = flags(cls, "train", words)
        names = typed(words) | ({"data"} if given.data else set())
        own = {name: value for name, value in given.settings().items() if name in names}
        merged = dataclasses.replace(given, **(_settings_below(given) | own))
        if not merged.data:
            raise UsageError("DATA is missing: tammes train DATA. See tammes train --help")
        return merged

    def run(self) -> int:
        from tammes.lab.cli.printing import print_result
        from tammes.lab.training.closing_lines import closing_lines
        from tammes.lab.training.loop import train
        from tammes.lab.training.progress import Terminal
        from tammes.lab.training.run_folder import RunFolder, next_folder

        out = Path(self.out) if self.out else next_folder(Path("runs") / Path(self.data).resolve().stem)
        _check_outside(out, Path(self.data))
        config = Config(**self.settings())
        if os.environ.get("RANK", "0") != "0":
            train(config, out, resume=self.resume)
            return 0
        with Terminal(out.name) as terminal:
            result = train(config, out, resume=self.resume, sinks=[terminal], announce=terminal.announce)
        if self.json:
            print(json.dumps(result))
        else:
            print_result(result)
            for line in (*closing_lines(RunFolder(out)), f"Run folder: {out}"):
                print(printable(line))
        return 0


def _check_outside(out: Path, data: Path) -> None:
    """Every subfolder of an image folder is a class, so a run folder inside would become one."""
    if data.is_dir() and out.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"The run folder {out} is inside the data folder. Choose another one with --out.")


def _with_value(words: list[str], flag: str, value: str) -> list[str]:
    """`words` with `value` inserted after a `flag` that has no value.

    >>> _with_value(["photos", "--pretrained", "--epochs", "3"], "--pretrained", "timm")
    ['photos', '--pretrained', 'timm', '--epochs', '3']
    """
    alone = [word == flag and (not after or after.startswith("-")) for word, after in pairwise([*words, ""])]
    return [part for word, bare in zip(words, alone, strict=True) for part in (word, value)[: 1 + bare]]


def _settings_below(given: Train) -> dict[str, Any]:
    """The settings that flags override: those of `--config`, `--preset`, or the run that is resumed."""
    if given.config and given.preset:
        raise UsageError("--config and --preset are mutually exclusive. Pass one of them.")
    if given.resume and not given.out:
        raise UsageError("--resume requires the run folder. Pass it with --out.")
    if given.config:
        return read_config(given.config).settings()
    if given.resume and given.out and (stored := Path(given.out) / "config.json").is_file():
        return read_config(stored).settings()
    if given.preset:
        from tammes.lab.recipes.presets import preset_settings

        return preset_settings(given.preset)
    return {}
