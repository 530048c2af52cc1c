"""Folders of photos: `tammes train ./photos` and a typical script with equal settings.

The typical script is a timm backbone, a linear layer, cross-entropy and torchvision's folder, transforms and
loader. Both have the same initial weights, image size, epochs, batch size, optimizer, learning rates,
schedule and augmentation, and evaluate once, at the end. Only from scratch our prototypes have their own
learning rate, and a batch norm before them: defaults for losses of cosines.

Rerun the command to continue an interrupted run; a finished one is not repeated. The sets are those of
benchmarks/photos_data.py. Run both contenders of a seed at the same time, so that both meet the same load.

Run: python -m benchmarks.photos --data DIR --copy-from CHECKOUT   (once for each set)
     python -m benchmarks.photos --data DIR --set flowers --contender tammes --seed 0
     python -m benchmarks.photos --table docs/photos.md        (the table of all records)
"""

import argparse
import dataclasses
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.photos_data import copy_subsets
from tammes._common.files import read_json, write_json
from tammes._common.memory import keep_freed_memory
from tammes.lab.data.image_folders import IMAGENET_MEAN, IMAGENET_STD, common_size, layout, network_size
from tammes.lab.models import build
from tammes.lab.models.backbone import timm_name
from tammes.lab.models.timm_models import Input, expected_input
from tammes.lab.record_stamp import commit, stamp, write_record
from tammes.lab.report.tables import Cell, Grid, fill, to_markdown
from tammes.lab.training import Config, resolve, train
from tammes.lab.training.config import ResolvedConfig
from tammes.lab.training.fine_tuning import SCRATCH_SIDE, pretrained_side

RESULTS = Path("results/photos")
THREADS = 1
SETS = {"flowers": "102 flowers", "gtsrb": "43 traffic signs"}
CONTENDERS = {
    "tammes": "tammes train, pretrained",
    "tammes-ce": "the same with CE",
    "usual": "usual script, pretrained",
    "tammes-scratch": "tammes train --from-scratch",
    "usual-scratch": "usual script, the same network from scratch",
}
EPOCHS = {("gtsrb", True): 6, ("flowers", True): 6, ("gtsrb", False): 10, ("flowers", False): 10}
"""Epochs by set and by whether the network is pretrained."""


SHOWN = (
    *("model", "pretrained", "objective", "epochs", "batch_size", "lr", "prototype_lr", "weight_decay"),
    *("augment_style", "frozen_start", "neck", "evaluate_every", "workers", "seed"),
)
"""Settings in the records."""


def settings(name: str, contender: str, data: Path, seed: int) -> Config:
    """The settings that a contender shares with its opponent. Except for epochs, the defaults of photos."""
    scratch = contender.endswith("scratch")
    objective: dict[str, Any] = (
        {"objective": "CE"} if contender in ("tammes-ce", "usual", "usual-scratch") else {}
    )
    epochs = EPOCHS[name, not scratch]
    chosen = {"seed": seed, "from_scratch": scratch, "epochs": epochs, "evaluate_every": epochs}
    return Config(data=str(data / name), **chosen, **objective)


class Clock:
    """Wall-clock and CPU seconds of a run and its loader processes, preserved when it is interrupted."""

    def __init__(self, path: Path) -> None:
        self.path, self.start, self.start_cpu = path, time.monotonic(), _cpu_seconds()
        self.before = read_json(path) if path.is_file() else {"seconds": 0.0, "cpu_seconds": 0.0}

    def read(self) -> dict[str, float]:
        cpu = _cpu_seconds() - self.start_cpu
        return {
            "seconds": round(self.before["seconds"] + time.monotonic() - self.start, 1),
            "cpu_seconds": round(self.before["cpu_seconds"] + cpu, 1),
        }

    def save(self) -> None:
        write_json(self.path, self.read())


def _cpu_seconds() -> float:
    """CPU seconds of this process and its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def with_tammes(config: Config, out: Path, clock: Clock) -> dict[str, Any]:
    """A run of `tammes train`."""
    keep_freed_memory()

    def note(record: dict[str, Any]) -> None:
        if record["kind"] == "epoch":
            clock.save()

    done = train(config, out / "run", resume=True, sinks=[note])
    return {"accuracy": done["metrics"]["accuracy"], "metrics": done["metrics"], "epochs": done["epochs"]}


def usual(config: ResolvedConfig, out: Path, clock: Clock) -> dict[str, Any]:
    """A run of the typical script with the settings of `config`."""
    torch.manual_seed(config.seed)
    expected = images_of(config)
    loader, test = loaders(config, expected)
    backbone = build(config.model, in_channels=3, image_size=expected.side, pretrained=config.pretrained)
    if config.pretrained is None:
        some = range(0, len(loader.dataset), 1 + len(loader.dataset) // 500)
        backbone.calibrate(torch.stack([loader.dataset[i][0] for i in some]))
    net = nn.Sequential(backbone, nn.Linear(backbone.out_features, len(loader.dataset.classes)))
    net = net.to(memory_format=torch.channels_last)  # type: ignore
    groups = [
        {"params": [p for p in backbone.parameters() if p.requires_grad], "lr": config.lr},
        {"params": net[1].parameters(), "lr": config.prototype_lr, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=config.weight_decay)  # type: ignore
    steps = config.epochs * len(loader)  # type: ignore
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    parts = {"net": net, "optimizer": optimizer, "schedule": schedule}
    for epoch in range(_restore(out / "usual.pt", parts), config.epochs):  # type: ignore
        net.train()
        for images, labels in loader:
            images = images.to(memory_format=torch.channels_last)
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        _keep(out / "usual.pt", parts, epoch + 1)
        clock.save()
    return {"accuracy": accuracy(net, test), "epochs": config.epochs}


def images_of(config: ResolvedConfig) -> Input:
    """Image side and channel statistics, as in `tammes train`; without pretraining, those of ImageNet."""
    files = layout(Path(config.data)).train[0]
    if config.pretrained is None:
        return Input(common_size(files, SCRATCH_SIDE)[0], IMAGENET_MEAN, IMAGENET_STD)
    own = expected_input(timm_name(config.model))
    return own._replace(side=network_size(files, pretrained_side(own.side, config.device))[0])


def loaders(config: ResolvedConfig, images: Input) -> tuple[Any, Any]:
    """torchvision's loaders for training and test images, with the augmentation of `tammes train`."""
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    side, flip = images.side, v2.RandomHorizontalFlip()
    normalize = v2.Normalize(list(images.mean), list(images.std))
    scaled = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), normalize]
    moves = [v2.Resize(side), v2.RandomCrop(side, side // 8, padding_mode="reflect"), flip]
    if config.augment_style == "photos":
        moves = [v2.RandomResizedCrop(side, scale=(0.25, 1.0)), flip, v2.TrivialAugmentWide()]
    center = [v2.Resize(side), v2.CenterCrop(side)]
    root = Path(config.data)
    train_set = ImageFolder(root / "train", v2.Compose([*moves, *scaled]))
    test_set = ImageFolder(root / "test", v2.Compose([*center, *scaled]))
    options: dict[str, Any] = {"batch_size": config.batch_size, "num_workers": config.workers}
    return (
        DataLoader(train_set, shuffle=True, drop_last=True, **options),
        DataLoader(test_set, **options),
    )


@torch.no_grad()
def accuracy(net: nn.Module, test: Iterator[tuple[Tensor, Tensor]]) -> float:
    """Fraction of test images whose largest logit is that of their class."""
    net.eval()
    right = [net(images.to(memory_format=torch.channels_last)).argmax(1) == labels for images, labels in test]
    return torch.cat(right).double().mean().item()


def _restore(path: Path, parts: dict[str, Any]) -> int:
    if not path.is_file():
        return 0
    stored = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(stored[name])
    torch.set_rng_state(stored["random"])
    return stored["epoch"]


def _keep(path: Path, parts: dict[str, Any], epoch: int) -> None:
    states = {name: part.state_dict() for name, part in parts.items()}
    more = {"epoch": epoch, "random": torch.get_rng_state()}
    torch.save(states | more, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def run(name: str, contender: str, data: Path, seed: int, out: Path, epochs: int | None) -> None:
    """Train one contender and write its record, unless it exists."""
    record = (RESULTS if epochs is None else out) / f"{name}-{contender}-seed{seed}.json"
    if record.is_file():
        print(f"{record} is there already.")
        return
    commit()
    torch.set_num_threads(THREADS)
    folder = out / f"{name}-{contender}-seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    clock = Clock(folder / "clock.json")
    asked = settings(name, contender, data, seed)
    asked = asked if epochs is None else dataclasses.replace(asked, epochs=epochs)
    config = resolve(asked)
    ours = contender.startswith("tammes")
    found = with_tammes(asked, folder, clock) if ours else usual(config, folder, clock)
    times = clock.read()
    chosen = {key: getattr(config, key) for key in SHOWN}
    side = images_of(config).side
    where = {"set": name, "contender": contender, "seed": seed, "image_size": side, "config": chosen}
    origin = {"threads": THREADS, "stamp": stamp(seconds=times["seconds"])}
    write_record(record, where | found | times | origin)
    print(f"{record}: {100 * found['accuracy']:.2f} % in {times['seconds'] / 60:.1f} min", flush=True)


def table() -> str:
    """All records as Markdown: mean, smallest and largest accuracy, minutes, CPU time against the rival's."""
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    blocks = []
    for name, title in SETS.items():
        rows = []
        for contender, words in CONTENDERS.items():
            some = [r for r in records if (r["set"], r["contender"]) == (name, contender)]
            rival = "usual-scratch" if contender.endswith("scratch") else "usual"
            others = [r for r in records if (r["set"], r["contender"]) == (name, rival)]
            if some:
                rows.append([Cell(text) for text in (words, *_numbers(some), _cpu_ratio(some, others))])
        if rows:
            blocks.append((title, rows))
    if not blocks:
        return "No run has finished yet.\n"
    columns = ("", "acc %", "lowest", "highest", "minutes", "CPU minutes", "pixels", "seeds", "CPU / usual's")
    return to_markdown(Grid("", columns, blocks))


def _numbers(some: list[dict[str, Any]]) -> list[str]:
    shares = [100 * record["accuracy"] for record in some]
    minutes = fmean(record["seconds"] / 60 for record in some)
    cpu = fmean(record["cpu_seconds"] / 60 for record in some)
    middle = [f"{value:.2f}" for value in (fmean(shares), min(shares), max(shares))]
    return [*middle, f"{minutes:.1f}", f"{cpu:.1f}", str(some[0]["image_size"]), str(len(some))]


def _cpu_ratio(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """CPU time relative to the rival's, over the seeds that both have run."""
    ours, theirs = ({record["seed"]: record["cpu_seconds"] for record in group} for group in (some, others))
    both = ours.keys() & theirs.keys()
    return f"{sum(ours[seed] for seed in both) / sum(theirs[seed] for seed in both):.2f}" if both else ""


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--data", type=Path, default=Path("data"), help="Folder that holds flowers and gtsrb."
    )
    parser.add_argument("--copy-from", type=Path, help="Checkout to copy the subset of a set from.")
    parser.add_argument("--set", choices=SETS)
    parser.add_argument("--contender", choices=CONTENDERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/photos"), help="Folder for unfinished runs.")
    parser.add_argument("--epochs", type=int, help="Other than the usual number: a trial, not a record.")
    parser.add_argument("--table", type=Path, help="Markdown page to fill with the table of all records.")
    chosen = parser.parse_args(words)
    if chosen.table:
        fill(chosen.table, "photos", table())
    elif chosen.copy_from:
        copy_subsets(chosen.copy_from, chosen.data)
    elif chosen.set is None or chosen.contender is None:
        parser.error("Give --set and --contender, --copy-from, or --table.")
    else:
        run(chosen.set, chosen.contender, chosen.data, chosen.seed, chosen.out, chosen.epochs)


if __name__ == "__main__":
    main()
