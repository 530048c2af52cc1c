"""Cost of the P x K sampler and of augmentation, relative to a training step of the laptop preset.

Uses random images, as many as the training part of our split of Market-1501; the cost is the same.

Run: python -m benchmarks.people     (into results/bench_people.json; a minute)
"""

import time
from pathlib import Path

import torch

from tammes.lab.data import IdentitySet, InMemory
from tammes.lab.data.augmentation import Augmentation
from tammes.lab.recipes.presets import preset_settings
from tammes.lab.record_stamp import stamp, write_record
from tammes.lab.training import Config, DataFacts, resolve
from tammes.lab.training.classifier import build_classifier
from tammes.lab.training.distributed import ALONE
from tammes.lab.training.engine import Engine
from tammes.lab.training.loop import batches_of

RESULTS = Path("results/bench_people.json")
THREADS, STEPS = 2, 40
N, PEOPLE, SIZE = 9173, 500, (128, 64)


def people() -> IdentitySet:
    """Random images in memory, as `load` returns them."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (N, *SIZE, 3), dtype=torch.uint8, generator=generator).permute(0, 3, 1, 2)
    labels = torch.cat([torch.arange(PEOPLE), torch.randint(PEOPLE, (N - PEOPLE,), generator=generator)])
    return IdentitySet(
        name="random people",
        train=InMemory(images, labels),
        test=InMemory(images[:2], labels[:2]),
        classes=tuple(map(str, range(PEOPLE))),
        mean=(0.5, 0.5, 0.5),
        std=(0.3, 0.3, 0.3),
        augmentation=Augmentation(shift=SIZE[0] // 25, flip=True, border="black", erase=0.5),
        cameras=torch.tensor([1, 2]),
        queries=1,
    )


def main() -> None:
    """Measure the seconds of a batch, of a step, and of ordering an epoch."""
    torch.set_num_threads(THREADS)
    start, config, dataset = time.perf_counter(), resolve(Config(**preset_settings("reid-laptop"))), people()
    engine = Engine(config, build_classifier(config, DataFacts.of(dataset)), ALONE)
    batches, _ = batches_of(config, dataset, ALONE)
    tick = time.perf_counter()
    batches.epoch(0)
    order = time.perf_counter() - tick
    loading = stepping = 0.0
    some = batches.epoch(0)
    for step in range(STEPS):
        tick = time.perf_counter()
        batch = next(some)
        tock = time.perf_counter()
        engine.step(batch, step)
        if step >= 5:  # the first steps warm up
            loading, stepping = loading + tock - tick, stepping + time.perf_counter() - tock
    count = STEPS - 5
    loader = loading / count + order / len(batches)
    rows = {
        "batch of": config.batch_size,
        "order of an epoch, ms": round(1e3 * order, 1),
        "batch with its share of the order, ms": round(1e3 * loader, 2),
        "step, ms": round(1e3 * stepping / count, 1),
        "loader's share of both": round(loader / (loader + stepping / count), 4),
        "images a second": round(config.batch_size / (loader + stepping / count), 1),
    }
    for name, value in rows.items():
        print(f"{name}: {value}", flush=True)
    write_record(RESULTS, rows | {"stamp": stamp(seconds=time.perf_counter() - start)})


if __name__ == "__main__":
    main()
