"""One MNIST epoch of the paper's recipe: ours, a typical script, and the overhead of the loop.

The typical script: torchvision's data set and transforms, a DataLoader, the network as printed in the paper,
the loss of pytorch-metric-learning, SGD. Ours: the loop of `tammes.lab.training` with its log and
checkpoints, in a process that keeps freed memory, as under `tammes train`. Each runs in a process of its own;
they take turns.

Run: python -m benchmarks.train ROOT      (ROOT holds MNIST/raw; into results/bench_train.json)
"""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from benchmarks.timing import side_by_side
from tammes._common.memory import keep_freed_memory
from tammes.lab.data import DataSet
from tammes.lab.record_stamp import stamp, write_record
from tammes.lab.training.classifier import DataFacts, build_classifier, load_data
from tammes.lab.training.config import Config, ResolvedConfig, resolve
from tammes.lab.training.distributed import ALONE
from tammes.lab.training.engine import Engine
from tammes.lab.training.loop import batches_of, fit
from tammes.lab.training.monitor import JsonLines, State, Stop, Watch
from tammes.lab.training.run_folder import RunFolder

RESULTS = Path("results/bench_train.json")
SCALE, BATCH, LR, DECAY = 10.0, 256, 0.01, 1e-4
THREADS = 2
USUAL = {f"usual script, {n} workers": n for n in (0, 2)}
OURS, BARE = "tammes", "forward, backward, step"

_epoch: Callable[[], None]
"""In a contender's process: one epoch."""


def usual(root: str, workers: int) -> Callable[[], None]:
    """An epoch of the typical script."""
    from pytorch_metric_learning.losses import NormalizedSoftmaxLoss
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    steps = [
        transforms.RandomCrop(28, padding=2),
        transforms.ToTensor(),
        transforms.Normalize((0.1307,), (0.3081,)),
    ]
    stored = datasets.MNIST(root, train=True, transform=transforms.Compose(steps))
    loader = DataLoader(stored, BATCH, shuffle=True, num_workers=workers, drop_last=True)
    net = nn.Sequential(*printed_stage(1, 32), *printed_stage(32, 64), nn.Flatten())
    loss = NormalizedSoftmaxLoss(num_classes=10, embedding_size=1600, temperature=1 / SCALE)
    parameters = [*net.parameters(), *loss.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=LR, momentum=0.9, weight_decay=DECAY)

    def epoch() -> None:
        for images, labels in loader:
            optimizer.zero_grad()
            loss(net(images), labels).backward()
            optimizer.step()

    return epoch


def printed_stage(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Conv, BatchNorm, ReLU, MaxPool, in the paper's order."""
    return nn.Conv2d(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)


def recipe(root: str) -> ResolvedConfig:
    """The paper's MNIST settings for one epoch."""
    config = Config(
        data="mnist",
        data_root=root,
        model="cnn4",
        objective=f"NormFace(s={SCALE:g})",
        optimizer="sgd",
        lr=LR,
        weight_decay=DECAY,
        batch_size=BATCH,
        epochs=1,
    )
    return resolve(config)


def ours(config: ResolvedConfig, dataset: DataSet) -> Callable[[], None]:
    """An epoch of our training loop with log and checkpoint. Few test images: only training is compared."""
    few = replace(dataset, test=dataset.test.select(torch.arange(BATCH)))

    def epoch() -> None:
        with tempfile.TemporaryDirectory() as out:
            folder = RunFolder(Path(out) / "run")
            folder.start(config, DataFacts.of(few))
            engine = Engine(config, build_classifier(config, DataFacts.of(few)), ALONE)
            batches, test = batches_of(config, few, ALONE)
            sinks = [JsonLines(folder.log)]
            watch = Watch(engine, State(), folder, epoch_steps=len(batches), sinks=sinks, stop=Stop())
            fit(engine, batches, test, watch)

    return epoch


def bare(config: ResolvedConfig, dataset: DataSet) -> Callable[[], None]:
    """As many training steps as in an epoch, on a single batch: no loop can be faster."""
    engine = Engine(config, build_classifier(config, DataFacts.of(dataset)), ALONE)
    batches, _ = batches_of(config, dataset, ALONE)
    images, labels, _ = next(iter(batches.epoch(0)))

    def epoch() -> None:
        for _ in range(len(batches)):
            engine.head(engine.forward(images), labels).backward()
            engine.optimizer.step()
            engine.optimizer.zero_grad()

    return epoch


def _begin(name: str, root: str) -> None:
    """Initialize the process of a contender."""
    global _epoch
    torch.set_num_threads(THREADS)
    if name in USUAL:
        _epoch = usual(root, USUAL[name])
        return
    keep_freed_memory()
    config = recipe(root)
    dataset = load_data(config)
    _epoch = ours(config, dataset) if name == OURS else bare(config, dataset)


def _run() -> None:
    _epoch()


def main(root: str) -> None:
    """Time whole epochs of all contenders after a warm-up, and write the ratios to the results file."""
    start, context = time.perf_counter(), multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        contenders: dict[str, Callable[[], object]] = {}
        for name in (*USUAL, OURS, BARE):
            pool = stack.enter_context(ProcessPoolExecutor(1, context, _begin, (name, root)))
            contenders[name] = lambda pool=pool: pool.submit(_run).result()
        best = side_by_side(contenders, rounds=2)
    found = {
        "config": {"recipe": "MNIST, the paper's net and settings, one epoch", "seed": recipe(root).seed},
        "seconds an epoch": {name: round(seconds, 2) for name, seconds in best.items()},
        "usual script over tammes": round(min(best[name] for name in USUAL) / best[OURS], 2),
        "loop over forward, backward, step": round(best[OURS] / best[BARE], 3),
    }
    print(found)
    write_record(RESULTS, found | stamp(seconds=time.perf_counter() - start))


if __name__ == "__main__":
    main(sys.argv[1])
