"""Rows that train in a moment."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tammes._common.threads import one_thread
from tammes.lab.recipes.table import Row
from tammes.lab.training import Config


@pytest.fixture(autouse=True)
def single():
    with one_thread():
        yield


@pytest.fixture(scope="session")
def root(few_digits) -> Path:
    return few_digits(40)


@dataclass
class Rows:
    """Makes rows of two epochs."""

    root: Path

    def __call__(self, key: str, **changes) -> Row:
        settings: dict[str, Any] = {"model": "cnn4", "epochs": 2, "batch_size": 16, "optimizer": "sgd"}
        settings |= {"data": "mnist", "data_root": str(self.root), "log_every": 1}
        return Row(key, f"row {key}", Config(**(settings | changes)))


@pytest.fixture
def row(root) -> Rows:
    return Rows(root)
