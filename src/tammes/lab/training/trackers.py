"""Experiment trackers. The package of a tracker is imported when it is used; the extra `lab` brings none."""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tammes._common.files import write_text
from tammes.lab.training.config import ResolvedConfig
from tammes.lab.training.monitor import Record


@runtime_checkable
class TrackerSink(Protocol):
    """A sink that can be closed."""

    def __call__(self, record: Record) -> None: ...
    def close(self) -> None: ...


def scalars(record: Record) -> dict[str, float]:
    """The numbers of a record by "step/loss", "epoch/accuracy" and so on."""
    kind = record["kind"]
    numbers = (record | record.get("terms", {})).items()
    return {f"{kind}/{name}": v for name, v in numbers if isinstance(v, int | float) and name != "step"}


class TensorBoard:
    """Writes event files into the run folder."""

    def __init__(self, folder: Path, step: int, settings: dict[str, Any]) -> None:
        """Hide events that were written after `step` before the run was resumed."""
        with _installed("TensorBoard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def __call__(self, record: Record) -> None:
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, record["step"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """Logs to Weights & Biases; WANDB_MODE=offline keeps everything in the run folder."""

    def __init__(self, folder: Path, step: int, settings: dict[str, Any]) -> None:
        """Continue the tracker's run of this folder, or start one."""
        with _installed("Weights & Biases", "wandb"):
            import wandb  # pyright: ignore[reportMissingImports]
        kept = folder / "wandb-run"
        if not kept.is_file():
            write_text(kept, secrets.token_hex(4))
        project = os.environ.get("WANDB_PROJECT", "tammes")
        self.run = wandb.init(
            project=project,
            name=folder.name,
            dir=str(folder),
            id=kept.read_text(encoding="utf-8").strip(),
            resume="allow",
            config=settings,
        )

    def __call__(self, record: Record) -> None:
        self.run.log(scalars(record), step=record["step"])

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """Logs to the server of MLFLOW_TRACKING_URI, or to a database in the run folder."""

    def __init__(self, folder: Path, step: int, settings: dict[str, Any]) -> None:
        """Continue the tracker's run of this folder, or start one."""
        with _installed("MLflow", "mlflow"):
            from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
            from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]
        self.metric = Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        self.client = MlflowClient(uri)
        kept = folder / "mlflow-run"
        if not kept.is_file():
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "tammes")
            found = self.client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self.client.create_experiment(name)
            run = self.client.create_run(experiment, run_name=folder.name).info.run_id
            self.client.log_batch(run, params=[Param(key, str(value)) for key, value in settings.items()])
            write_text(kept, run)
        self.run = kept.read_text(encoding="utf-8").strip()

    def __call__(self, record: Record) -> None:
        now = int(1000 * time.time())
        values = [self.metric(name, value, now, record["step"]) for name, value in scalars(record).items()]
        self.client.log_batch(self.run, metrics=values)

    def close(self) -> None:
        self.client.set_terminated(self.run)


TRACKERS: dict[str, Callable[[Path, int, dict[str, Any]], TrackerSink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
"""The tracker of a run folder, from a step on, by the value of `track`."""


def tracker_of(folder: Path, config: ResolvedConfig, step: int) -> TrackerSink:
    """The tracker that `config` asks for, which continues after `step`."""
    return TRACKERS[config.track](folder, step, config.settings())


@contextlib.contextmanager
def _installed(name: str, extra: str) -> Iterator[None]:
    """Turns a missing package into an error that says how to install it."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f'{name} is not installed. Install it: pip install "tammes[{extra}]"') from error
