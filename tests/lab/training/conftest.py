"""A data set that trains in milliseconds, and a network without batch statistics."""

import multiprocessing
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tammes.lab.models import MODELS, Backbone
from tammes.lab.training import Config, RunFolder
from tammes.lab.training.monitor import read_log


class InterruptAt:
    """A sink that presses Ctrl-C when the run has come to a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, record) -> None:
        if record["step"] == self.step:
            signal.raise_signal(signal.SIGINT)


TIMES = ("seconds", "samples_per_second", "date")


def traces(path):
    """Everything a run leaves, without what the clock decides."""
    folder = RunFolder(path)
    log = [{k: v for k, v in r.items() if k not in TIMES} for r in read_log(folder.log)]
    result = {k: v for k, v in (folder.result or {}).items() if k not in TIMES}
    return log, result, folder.weights(), folder.weights("best")


@pytest.fixture
def assert_same_end():
    """Compares what two runs left, bit by bit."""

    def check(one, other):
        a, b = traces(one), traces(other)
        for mine, theirs in zip(a[:2], b[:2], strict=True):
            assert mine == theirs
        for mine, theirs in zip(a[2:], b[2:], strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)

    return check


@pytest.fixture
def interrupt_at():
    return InterruptAt


@pytest.fixture(scope="session")
def processes():
    """Starts processes that have imported the command line already."""
    context = multiprocessing.get_context("forkserver")
    # The last two are what torch.optim and the bounds import when they are first used.
    modules = ["tammes.lab.training.loop", "tammes.lab.cli.train", "torch._inductor.config", "scipy.special"]
    context.set_forkserver_preload(["pytest", *modules])  # which the files of the tests import
    return context


def blobs(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Five kinds of noisy stripes, 10 x 11 pixels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 5
    waves = np.sin(np.arange(11)[None, :] * (labels[:, None] + 1) * 0.6)
    grey = 128 + 70 * waves[:, None, :] + rng.normal(0, 40, (n, 10, 11))
    return grey.clip(0, 255).astype(np.uint8), labels


@pytest.fixture(scope="session")
def stripes(tmp_path_factory) -> str:
    """Path of an .npz file: 97 images to train on, 31 to test on."""
    path = tmp_path_factory.mktemp("data") / "stripes.npz"
    (x_train, y_train), (x_test, y_test) = blobs(97, seed=0), blobs(31, seed=1)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return str(path)


class Perceptron(Backbone):
    """Two linear layers with dropout between them."""

    def __init__(self, pixels: int, dropout: float) -> None:
        super().__init__(7, nonnegative=False)
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 7)
        )

    def features(self, images):
        return self.net(images)


@pytest.fixture
def perceptron(monkeypatch) -> None:
    """Registers the models "perceptron" and "dropout"."""
    for name, dropout in (("perceptron", 0.0), ("dropout", 0.5)):
        make = lambda c, size, d, p=dropout: Perceptron(c * size[0] * size[1], p)  # noqa: E731
        monkeypatch.setitem(MODELS, name, make)


@dataclass
class Settings:
    """Makes configs of short runs."""

    data: str

    def __call__(self, **changes) -> Config:
        short: dict[str, Any] = {"model": "perceptron", "epochs": 3, "batch_size": 16, "log_every": 4}
        short |= {"data": self.data, "optimizer": "sgd"}
        return Config(**(short | changes))


@pytest.fixture
def settings(stripes, perceptron) -> Settings:
    return Settings(stripes)
