"""The training loop, and `train`, which sets it up in a run folder."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch

from tammes.lab.data import Batches, DataSet
from tammes.lab.models.backbone import check_model
from tammes.lab.record_stamp import commit, stamp
from tammes.lab.training.classifier import DataFacts, build_classifier, calibrate, load_data
from tammes.lab.training.config import Config, ResolvedConfig, resolve
from tammes.lab.training.distributed import World, determinism, locked, world
from tammes.lab.training.engine import Engine, learning_rate
from tammes.lab.training.evaluation import Classification, Measured, Protocol, protocol
from tammes.lab.training.monitor import JsonLines, Sink, State, Watch, listening, rewind
from tammes.lab.training.photos import with_photos
from tammes.lab.training.progress import imbalance_advice, run_plan
from tammes.lab.training.run_folder import RunFolder
from tammes.lab.training.trackers import TrackerSink, tracker_of
from tammes.lab.training.warm_start import as_before, check_fits, seen_as_by, starting_weights


def fit(engine: Engine, batches: Batches, test: Protocol, watch: Watch) -> Measured | None:
    """Train from `watch.state` to the end. Return the last evaluation, or None if nothing was left to do."""
    config, world, state, evaluation = engine.config, engine.world, watch.state, None
    if config.learns == "nothing":
        watch.save()
        return None
    progress = watch.progress()
    while state.batch or (progress < 1 and (config.patience is None or state.stale < config.patience)):
        engine.begin_epoch(state.epoch)
        for batch in batches.epoch(state.epoch, rank=world.rank, world_size=world.size, start=state.batch):
            if progress >= 1:
                break
            rate = engine.set_rates(
                learning_rate(config.schedule, progress, warmup=config.warmup, milestones=config.milestones)
            )
            engine.reweight(progress)
            engine.freeze(progress)
            loss = engine.step(batch, state.step)
            progress = watch.after_step(loss, rate)
        due = progress >= 1 or (state.epoch + 1) % config.evaluate_every == 0
        start = time.monotonic()
        evaluation = test.measure(engine.gather(), world) if due else None
        watch.after_epoch(evaluation, time.monotonic() - start)
        if due:
            progress = watch.progress()  # no time may be left for another evaluation
    watch.save()
    return evaluation


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    dataset: DataSet | None = None,
    sinks: Sequence[Sink] = (),
    announce: Callable[[dict[str, str]], None] | None = None,
) -> dict[str, Any]:
    """Train by `config` in the folder `out`. Return the record of the run, also saved in its `result.json`.

    Args:
        config: what is asked for. `resolve` fills in what it leaves open; a resumed run keeps its own values.
        out: a new folder, or with `resume` the folder of this run.
        resume: resume from the last checkpoint. With the same number of threads and processes the result is
            bit-for-bit that of an uninterrupted run, except under a time budget (`minutes`). If the run is
            finished, its record is returned.
        dataset: overrides the data set of `config`.
        sinks: called with every record, in addition to the log in the folder.
        announce: called with the `run_plan` before the first step.
    """
    commit()  # cache it now: another commit may be checked out when the run ends
    folder = RunFolder(Path(out))
    with world(config.device) as here, determinism(config.deterministic):
        if folder.result is not None and folder.check(config, resume=resume):
            return folder.result
        with locked(folder.path, here):
            resuming = folder.check(config, resume=resume)
            if here.first:
                folder.remove_leftovers()
            resolved = folder.config if resuming else resolve(config)
            check_model(resolved.model, last_stride=resolved.last_stride, pretrained=resolved.pretrained)
            options = {"dataset": dataset, "sinks": sinks, "announce": announce}
            return _train(resolved, folder, here, resuming=resuming, **options)


def _train(
    config: ResolvedConfig,
    folder: RunFolder,
    here: World,
    *,
    resuming: bool,
    dataset: DataSet | None,
    sinks: Sequence[Sink],
    announce: Callable[[dict[str, str]], None] | None,
) -> dict[str, Any]:
    """`train` in a folder locked by this process."""
    with here.first_goes_first():
        dataset = dataset or load_data(config, folder.facts.shape[1:] if resuming else None)
    if resuming:
        dataset = as_before(dataset, folder)
    elif config.start is not None:
        dataset = seen_as_by(dataset, RunFolder(Path(config.start)))
    facts = DataFacts.of(dataset)
    engine = Engine(config, build_classifier(config, facts), here)
    state = (restore(engine, folder) if resuming else None) or first_state(engine, dataset)
    if announce is not None and here.first:
        announce(run_plan(config, dataset, engine.classifier, here.device))
    batches, test = batches_of(config, dataset, here)
    advice = imbalance_advice(config, facts) if isinstance(test, Classification) else None
    if here.first and advice:
        warnings.warn(advice, stacklevel=3)
    tracked = here.first and config.track != "none"
    tracker = tracker_of(folder.path, config, state.step) if tracked else None
    sinks = [*folder_sinks(folder, state, tracker), *sinks] if here.first else []
    if not resuming and here.first:
        folder.start(config, facts)
    with closing(tracker) if tracker else nullcontext(), listening() as stop:
        watch = Watch(engine, state, folder, epoch_steps=len(batches), sinks=sinks, stop=stop)
        evaluation = fit(engine, batches, test, watch)
    evaluation = evaluation or test.measure(engine.gather(), here)
    result = outcome(engine, dataset, state, evaluation)
    if here.first:
        folder.save_result(result, with_photos(evaluation.arrays, dataset.test))
    return result


def first_state(engine: Engine, dataset: DataSet) -> State:
    """Initialize a run: from the weights of another one, or by calibrating the network on the data."""
    if engine.config.start is not None:
        weights = starting_weights(engine.config, DataFacts.of(dataset))
        check_fits(weights, engine.classifier.state_dict(), engine.config.start)
        engine.begin(weights)
        return State()
    calibrate(engine.classifier.backbone, dataset, engine.config, engine.world.device)
    return State()


def restore(engine: Engine, folder: RunFolder) -> State | None:
    """Load the last intact checkpoint into `engine`. Return its state, or None if there is no checkpoint."""
    found = folder.restore()
    if found is None:
        return None
    engine.world.wait()  # until all ranks have read, because damaged checkpoints are renamed next
    for path, reason in found.damaged.items():
        if engine.world.first:
            aside = folder.set_aside(path)
            warnings.warn(
                f"{reason} Resuming from {found.path.name}; the damaged one is now {aside}.", stacklevel=4
            )
    engine.load(found.weights, found.state)
    state = State(**found.state["run"])
    if (before := state.threads[-1]) != (now := torch.get_num_threads()):
        state.threads.append(now)
        if engine.world.first:
            warnings.warn(
                f"The run used {before} threads before and has {now} now: sums round differently, so "
                f"the result will not be bit-identical. To avoid that, set OMP_NUM_THREADS={before}.",
                stacklevel=4,
            )
    return state


def batches_of(config: ResolvedConfig, dataset: DataSet, here: World) -> tuple[Batches, Protocol]:
    """Training batches, without an incomplete last one, and the evaluation protocol of the data set."""
    options = {"batch_size": config.batch_size, "device": here.device, "workers": config.workers}
    whole = len(dataset.train) >= config.batch_size
    train = Batches(
        dataset,
        "train",
        training=True,
        sampling=config.sampling,
        images_per_person=config.images_per_person,
        seed=config.seed,
        drop_last=whole,
        **options,
    )
    test = Batches(dataset, "test", training=False, **options)
    return train, protocol(dataset, test, flip=config.test_flip, autocast=config.autocast)


def folder_sinks(folder: RunFolder, state: State, tracker: TrackerSink | None) -> list[Sink]:
    """The run's log, truncated to `state`, and its tracker."""
    rewind(folder.log, epoch=state.epoch, step=state.step)
    return [JsonLines(folder.log), *([] if tracker is None else [tracker])]


def outcome(engine: Engine, dataset: DataSet, state: State, evaluation: Measured) -> dict[str, Any]:
    """The record of a finished run."""
    config, here, head = engine.config, engine.world, engine.classifier.head
    origin = stamp(seconds=state.seconds, device=here.device)
    origin["machine"]["processes"] = here.size
    if state.threads[:-1]:
        origin["machine"]["threads_before"] = state.threads[:-1]
    return origin | {
        "asked": config.asked.changed(),
        "config": config.settings(),
        "seed": config.seed,
        "data": dataset.name,
        "class_counts": dataset.class_counts.tolist(),
        "classes": head.num_classes,
        "dimensions": head.in_features,
        "parameters": sum(p.numel() for p in engine.classifier.parameters()),
        "epochs": state.epoch,
        "steps": state.step,
        "metrics": evaluation.numbers(),
        "best": {
            evaluation.headline: max(state.best_score, evaluation.score),
            "epoch": max(state.best_epoch, 0),
        },
    }
