"""Monitoring of a run: its log, checkpoints, signals, and the end of an epoch."""

import dataclasses
import json
import math
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tammes._common.files import write_bytes, write_text
from tammes.lab.training.engine import Engine
from tammes.lab.training.evaluation import Measured
from tammes.lab.training.run_folder import RunFolder

HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows

SHORT = 1.0
"""Epochs shorter than this, in seconds, do not all end with a checkpoint."""

Record = dict[str, Any]
"""A "step" (loss, terms, learning rate, speed) or an "epoch" (the metrics of an evaluation)."""

Sink = Callable[[Record], None]


class NonFiniteLossError(ArithmeticError):
    """The loss or a weight became NaN or infinite."""


class RunInterruptedError(Exception):
    """The run was asked to stop and has written a checkpoint."""

    exit_code = 130


@dataclass
class State:
    """Progress of a run: what a checkpoint stores besides weights and optimizer state."""

    epoch: int = 0
    batch: int = 0  # completed in this epoch
    step: int = 0  # completed in the run
    seconds: float = 0.0
    evaluation_seconds: float = 0.0  # of the longest evaluation
    loss: float = math.nan  # of the last step whose loss was read
    best_score: float = -1.0
    best_epoch: int = -1
    stale: int = 0  # evaluations since the best one
    threads: list[int] = field(
        default_factory=lambda: [torch.get_num_threads()]
    )  # the last entry is the current number


class Stop:
    """Whether a signal has requested the run to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, _: Any) -> None:
        if self.asked and number != HANGUP:  # a closing terminal sends more than one
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def listening() -> Iterator[Stop]:
    """Stop gracefully on Ctrl-C, SIGTERM or a closed terminal. A second signal stops immediately."""
    stop, kinds = Stop(), [signal.SIGINT, signal.SIGTERM]
    if HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:  # ignored under nohup
        kinds.append(HANGUP)
    try:
        before = {kind: signal.signal(kind, stop) for kind in kinds}
    except ValueError:  # handlers can be set only in the main thread
        before = {}
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


class Watch:
    """Monitors a run without synchronizing after each step: losses are read every `log_every` steps."""

    def __init__(
        self,
        engine: Engine,
        state: State,
        folder: RunFolder,
        *,
        epoch_steps: int,
        sinks: Sequence[Sink],
        stop: Stop,
    ) -> None:
        self.engine, self.state, self.folder, self.sinks, self.stop = engine, state, folder, sinks, stop
        config = engine.config
        self.steps = None if config.epochs is None else config.epochs * epoch_steps
        self.losses = torch.zeros(config.log_every, device=engine.world.device)
        self.rates: list[float] = []
        self.saved = self.noted = time.monotonic()
        self.noted_step = state.step
        self.started = time.monotonic() - state.seconds
        self.ticks = [sink.tick for sink in sinks if hasattr(sink, "tick")]  # type: ignore

    def progress(self) -> float:
        """Completed fraction of the run, by steps or by time."""
        config, state = self.engine.config, self.state
        state.seconds = time.monotonic() - self.started
        by_steps = 0.0 if self.steps is None else state.step / self.steps
        by_time = 0.0
        if config.minutes is not None:
            left = max(60 * config.minutes - state.evaluation_seconds, 1e-9)  # the last evaluation counts too
            by_time = self.engine.world.from_first(state.seconds / left)
        return min(1.0, max(by_steps, by_time))

    def after_step(self, loss: Tensor, rate: float) -> float:
        """Record the step; log, save a checkpoint or stop if due. Return the progress of the run."""
        self.losses[len(self.rates)] = loss
        self.rates.append(rate)
        self.state.batch += 1
        self.state.step += 1
        world, full = self.engine.world, self.state.step % self.engine.config.log_every == 0
        progress = self.progress()
        for tick in self.ticks:
            tick(progress)
        if full:
            self._log(progress)
        if full or world.size == 1:
            late = time.monotonic() - self.saved > self.engine.config.checkpoint_seconds
            asked, due = world.any(self.stop.asked, late)
            if asked or due:
                self.save()
            if asked:
                self._interrupt()
        return progress

    def after_epoch(self, evaluation: Measured | None, seconds: float = 0.0) -> None:
        """Log the evaluation, if any, which took `seconds`; keep the best weights and save a checkpoint."""
        self.read_losses()
        state = self.state
        state.evaluation_seconds = max(state.evaluation_seconds, seconds)
        if evaluation is not None:
            self._emit("epoch", loss=state.loss, **evaluation.numbers())
            self._keep_best(evaluation.score)
        state.epoch, state.batch = state.epoch + 1, 0
        asked, due = self.engine.world.any(self.stop.asked, time.monotonic() - self.saved > SHORT)
        if asked or due:
            self.save()
        if asked:
            self._interrupt()
        self.noted, self.noted_step = time.monotonic(), state.step

    def _keep_best(self, score: float) -> None:
        state = self.state
        state.stale += 1
        if score > state.best_score:
            state.best_score, state.best_epoch, state.stale = score, state.epoch + 1, 0
            if self.engine.world.first:
                self.folder.save_best(self.engine.classifier.state_dict())

    def read_losses(self) -> None:
        """Read the losses recorded since the last call; raise if one is not finite."""
        values = self.losses[: len(self.rates)].tolist()
        first = self.state.step - len(values) + 1
        for i, (loss, rate) in enumerate(zip(values, self.rates, strict=True)):
            if not math.isfinite(loss):
                raise self._diverged(f"The loss became {loss} at step {first + i}", rate)
        if values:
            self.state.loss = values[-1]
        self.rates.clear()

    def _check_finite(self, weights: dict[str, Tensor]) -> None:
        """Check the weights: the last step can break them even though its loss was finite."""
        wrong = [name for name, value in weights.items() if not value.isfinite().all()]
        if wrong:
            rate = self.engine.optimizer.param_groups[0]["lr"]
            raise self._diverged(f"{wrong[0]} is no longer finite after step {self.state.step}", rate)

    def _diverged(self, what: str, rate: float) -> NonFiniteLossError:
        return NonFiniteLossError(
            f"{what}, with a learning rate of {rate:g}. "
            f"The last finite checkpoint is {self.folder.checkpoint() or 'none'}. "
            "Start again with a lower --lr, with --warmup 0.05 or with --clip 1."
        )

    def save(self) -> None:
        """Write a checkpoint if all weights are finite; raise otherwise."""
        self.read_losses()
        name = f"checkpoint-{self.state.epoch:05d}-{self.state.step:09d}"
        state = self.engine.state() | {"run": dataclasses.asdict(self.state)}
        weights = self.engine.gather().state_dict()
        self._check_finite(weights)
        if self.engine.world.first:
            self.folder.save(name, weights, state)
        self.saved = time.monotonic()

    def _interrupt(self) -> None:
        raise RunInterruptedError(
            f"Stopped after step {self.state.step}; progress is saved. Resume: {self.folder.how_to_resume()}"
        )

    def _log(self, progress: float) -> None:
        self.read_losses()
        now, state = time.monotonic(), self.state
        speed = (state.step - self.noted_step) * self.engine.config.batch_size / (now - self.noted)
        self.noted, self.noted_step = now, state.step
        terms = self.engine.terms
        self._emit(
            "step",
            progress=progress,
            lr=self.engine.optimizer.param_groups[0]["lr"],
            loss=state.loss,
            terms={name: value.item() for name, value in terms.items()},
            samples_per_second=round(speed, 1),
        )

    def _emit(self, kind: str, **values: Any) -> None:
        state = self.state
        head = {"kind": kind, "epoch": state.epoch, "step": state.step, "seconds": round(state.seconds, 3)}
        for sink in self.sinks:
            sink(head | values)


class JsonLines:
    """Appends each record to a file as one line of JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, record: Record) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise OSError(f"Cannot write {self.path}: {error.strerror}.") from error


def read_log(path: Path) -> list[Record]:
    """Read the records of a log. Skips an incomplete last line, and damaged lines with a warning."""
    records, damaged = _split(path)
    if damaged:
        warnings.warn(f"{path} has {len(damaged)} damaged lines, which are skipped.", stacklevel=2)
    return records


def rewind(path: Path, *, epoch: int, step: int) -> None:
    """Drop the records that a run resumed in `epoch` after `step` will write again.

    Damaged lines are moved to a file next to the log. Training does not need them.
    """
    records, damaged = _split(path)
    if damaged:
        aside = path.with_name(f"damaged-{path.name}")
        before = aside.read_bytes() if aside.is_file() else b""
        write_bytes(aside, before + b"".join(line + b"\n" for line in damaged))
        warnings.warn(f"{len(damaged)} damaged lines of {path} are now in {aside}.", stacklevel=2)
    if path.exists():
        again = {"step": lambda r: r["step"] > step, "epoch": lambda r: r["epoch"] >= epoch}
        kept = [json.dumps(r) for r in records if not again[r["kind"]](r)]
        write_text(path, "".join(f"{line}\n" for line in kept))


def _split(path: Path) -> tuple[list[Record], list[bytes]]:
    """The records of a log, and its damaged lines. An incomplete last line is neither."""
    records: list[Record] = []
    damaged: list[bytes] = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.is_file() else []:
        record = _record(line)
        if record is None:
            damaged.append(line)
        else:
            records.append(record)
    return records, damaged


def _record(line: bytes) -> Record | None:
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    known = isinstance(found, dict) and found.get("kind") in ("step", "epoch")
    return found if known and isinstance(found.get(found["kind"]), int) else None
