"""The share of a run on CIFAR-10 that goes into evaluation, with the defaults of `tammes train cifar10`.

Times a training step and the evaluation of one batch of test images in turn, on random images of the same
shape, in float32 and in bfloat16 (`--autocast`).

Run: python -m benchmarks.evaluation     (into results/bench_evaluation.json; about a minute)
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import side_by_side
from tammes._common.memory import keep_freed_memory
from tammes.lab.data import Augmentation, DataSet
from tammes.lab.data.dataset import InMemory, in_memory
from tammes.lab.record_stamp import stamp, write_record
from tammes.lab.training.classifier import DataFacts, build_classifier
from tammes.lab.training.config import Config, ResolvedConfig, resolve
from tammes.lab.training.distributed import ALONE
from tammes.lab.training.engine import Engine
from tammes.lab.training.loop import batches_of

RESULTS = Path("results/bench_evaluation.json")
THREADS, ROUNDS, STEPS = 2, 5, 8
TRAIN, TEST = 50_000, 10_000
"""Images of CIFAR-10."""


def images_like_cifar10(batch: int) -> DataSet:
    """Random training images, and `STEPS` batches of test images."""
    generator = torch.Generator().manual_seed(0)

    def images(n: int) -> InMemory:
        pixels = torch.randint(256, (n, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return InMemory(pixels, torch.arange(n) % 10)

    names = tuple("0123456789")
    shift = Augmentation(shift=4, flip=True)
    return in_memory("random", images(STEPS * batch), images(STEPS * batch), names, shift, None)


def measure(config: ResolvedConfig) -> dict[str, Any]:
    """Seconds per image of training and of evaluation, and the share of a run that is evaluation."""
    dataset = images_like_cifar10(config.batch_size)
    engine = Engine(config, build_classifier(config, DataFacts.of(dataset)), ALONE)
    batches, test = batches_of(config, dataset, ALONE)

    def train() -> None:
        for step, batch in enumerate(batches.epoch(0)):
            engine.step(batch, step)

    best = side_by_side({"train": train, "test": lambda: test.measure(engine.gather())}, rounds=ROUNDS)
    ratio = best["test"] * TEST / (best["train"] * TRAIN)
    return {
        "seconds per training step": best["train"] / STEPS,
        "evaluation, % of an epoch": round(100 * ratio, 2),
        "evaluate_every": config.evaluate_every,
        "evaluation, % of the training time of a run": round(100 * ratio / config.evaluate_every, 2),
    }


def main() -> None:
    """Measure in both precisions and write the record."""
    torch.set_num_threads(THREADS)
    keep_freed_memory()
    start = time.perf_counter()
    usual = resolve(Config(data="cifar10"))
    rows = {autocast: measure(replace(usual, autocast=autocast)) for autocast in ("none", "bf16")}
    print(rows)
    shown = {name: getattr(usual, name) for name in ("model", "epochs", "batch_size", "optimizer", "seed")}
    write_record(RESULTS, {"config": shown, "autocast": rows} | stamp(seconds=time.perf_counter() - start))


if __name__ == "__main__":
    main()
