"""What happens around the steps of a run: logging, checkpoints, stopping, and the end of an epoch."""

import dataclasses
import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tammes.training.engine import Engine
from tammes.training.folder import RunFolder
from tammes.training.protocols import Measured
from tammes.training.sinks import Sink

SHORT = 1.0
"""Seconds: epochs that take less are not each saved."""


class NonFiniteLossError(ArithmeticError):
    """The loss, or a weight, became NaN or infinite."""


class RunInterruptedError(Exception):
    """The run was asked to stop, and has written a checkpoint."""

    exit_code = 130


@dataclass
class State:
    """Where a run is; with weights and optimiser, all that a checkpoint needs."""

    epoch: int = 0
    batch: int = 0  # of this epoch, done
    step: int = 0  # of the run, done
    seconds: float = 0.0
    loss: float = math.nan  # of the last step that was read
    best_score: float = -1.0
    best_epoch: int = -1
    stale: int = 0  # evaluations since the best one


class Stop:
    """Whether the user, or the machine, asked the run to end."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def listening() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask to stop; a second one does not wait."""
    stop = Stop()
    try:
        before = {kind: signal.signal(kind, stop) for kind in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # signals reach only the main thread
        before = {}
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


class Watch:
    """Looks at a run after each step without making it wait: losses are read every `log_every` steps."""

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

    def progress(self) -> float:
        """The share of the run that is done, by steps or by time."""
        config, state = self.engine.config, self.state
        state.seconds = time.monotonic() - self.started
        by_steps = 0.0 if self.steps is None else state.step / self.steps
        by_time = 0.0 if config.minutes is None else state.seconds / (60 * config.minutes)
        if config.minutes is not None:
            by_time = self.engine.world.from_first(by_time)
        return min(1.0, max(by_steps, by_time))

    def after_step(self, loss: Tensor, rate: float) -> float:
        """Note the step; log, save or stop where it is time to. The progress of the run."""
        self.losses[len(self.rates)] = loss
        self.rates.append(rate)
        self.state.batch += 1
        self.state.step += 1
        world, full = self.engine.world, self.state.step % self.engine.config.log_every == 0
        progress = self.progress()
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

    def after_epoch(self, evaluation: Measured | None) -> None:
        """Log the evaluation if there was one, keep the best weights, save."""
        self.read_losses()
        state = self.state
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
        """Wait for the losses noted since the last time; an error where one is not finite."""
        values = self.losses[: len(self.rates)].tolist()
        first = self.state.step - len(values) + 1
        for i, (loss, rate) in enumerate(zip(values, self.rates, strict=True)):
            if not math.isfinite(loss):
                raise self._diverged(f"The loss became {loss} at step {first + i}", rate)
        if values:
            self.state.loss = values[-1]
        self.rates.clear()

    def _check_finite(self, weights: dict[str, Tensor]) -> None:
        """The last step may have spoilt the weights after a loss that was finite."""
        wrong = [name for name, value in weights.items() if not value.isfinite().all()]
        if wrong:
            rate = self.engine.optimizer.param_groups[0]["lr"]
            raise self._diverged(f"{wrong[0]} is no longer finite after step {self.state.step}", rate)

    def _diverged(self, what: str, rate: float) -> NonFiniteLossError:
        return NonFiniteLossError(
            f"{what}, with a learning rate of {rate:g}. "
            f"The last finite checkpoint is {self.folder.checkpoint() or 'none'}. "
            "Start anew with a lower --lr, with --warmup 0.05 or with --clip 1."
        )

    def save(self) -> None:
        """Write a checkpoint of finite weights."""
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
            f"Stopped after step {self.state.step}; nothing is lost. Go on: {self.folder.how_to_resume()}"
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
