"""The training loop, readable on one screen, and `train`, which sets it up in a folder."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tammes.data import Batches, DataSet
from tammes.provenance import stamp
from tammes.training.classifier import DataFacts, build_classifier, calibrate, load_data
from tammes.training.config import Config
from tammes.training.distributed import World, determinism, world
from tammes.training.engine import Engine
from tammes.training.folder import RunFolder
from tammes.training.protocols import Classification, Measured, Protocol, protocol
from tammes.training.schedules import learning_rate
from tammes.training.sinks import JsonLines, Sink, TensorBoard, rewind
from tammes.training.skew import skew_advice
from tammes.training.start import as_at_the_start, as_before, check_fits, starting_weights
from tammes.training.watch import State, Watch, listening


def fit(engine: Engine, batches: Batches, test: Protocol, watch: Watch) -> Measured | None:
    """Train from where `watch.state` is to the end; the last evaluation, None if there was nothing to do."""
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
            loss = engine.step(batch, state.step)
            progress = watch.after_step(loss, rate)
        due = progress >= 1 or (state.epoch + 1) % config.evaluate_every == 0
        evaluation = test.measure(engine.gather(), world) if due else None
        watch.after_epoch(evaluation)
    watch.save()
    return evaluation


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    dataset: DataSet | None = None,
    sinks: Sequence[Sink] = (),
) -> dict[str, Any]:
    """Train as `config` says into the folder `out`; the record of the run, also in its `result.json`.

    Args:
        config: the run.
        out: a new folder, or with `resume` one that holds this run.
        resume: go on where the last checkpoint is, to the same end as if nothing had happened; a run that
            takes `minutes` ends elsewhere each time. A finished run's record is returned as it is.
        dataset: in place of the one `config` names.
        sinks: called with every record, besides the folder's own log.
    """
    folder = RunFolder(Path(out))
    with world(config.device) as here, determinism(config.deterministic):
        going_on = folder.check(config, resume=resume)
        if going_on and folder.result is not None:
            return folder.result
        with here.first_goes_first():
            dataset = dataset or load_data(config)
        dataset = as_before(dataset, folder) if going_on else as_at_the_start(dataset, config)
        facts = DataFacts.of(dataset)
        engine = Engine(config, build_classifier(config, facts), here)
        state = (restore(engine, folder) if going_on else None) or first_state(engine, dataset)
        batches, test = batches_of(config, dataset, here)
        advice = skew_advice(config, facts) if isinstance(test, Classification) else None
        if here.first and advice:
            warnings.warn(advice, stacklevel=2)
        sinks = [*folder_sinks(folder, config, state), *sinks] if here.first else []
        if not going_on and here.first:
            folder.start(config, facts)
        with listening() as stop:
            watch = Watch(engine, state, folder, epoch_steps=len(batches), sinks=sinks, stop=stop)
            evaluation = fit(engine, batches, test, watch)
        evaluation = evaluation or test.measure(engine.gather(), here)
        result = outcome(engine, dataset, state, evaluation)
        if here.first:
            folder.save_result(result, evaluation.arrays)
        return result


def first_state(engine: Engine, dataset: DataSet) -> State:
    """The start of a run: where another one ended, or with the network calibrated to its data."""
    if engine.config.start is not None:
        weights = starting_weights(engine.config, DataFacts.of(dataset))
        check_fits(weights, engine.classifier.state_dict(), engine.config.start)
        engine.begin(weights)
        return State()
    calibrate(engine.classifier.backbone, dataset, engine.config, engine.world.device)
    return State()


def restore(engine: Engine, folder: RunFolder) -> State | None:
    """Load the last checkpoint into `engine`; where it was then, None without one."""
    checkpoint = folder.checkpoint()
    if checkpoint is None:
        return None
    weights, stored = folder.restore(checkpoint)
    engine.load(weights, stored)
    return State(**stored["run"])


def batches_of(config: Config, dataset: DataSet, here: World) -> tuple[Batches, Protocol]:
    """Training batches, without a last one that is smaller than the others, and the test of the data set."""
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
    return train, protocol(dataset, test, flip=config.test_flip)


def folder_sinks(folder: RunFolder, config: Config, state: State) -> list[Sink]:
    """The run's own log, without what lies after `state`, and TensorBoard's where it is asked for."""
    rewind(folder.log, epoch=state.epoch, step=state.step)
    board = [TensorBoard(folder.path / "tensorboard", state.step)] if config.tensorboard else []
    return [JsonLines(folder.log), *board]


def outcome(engine: Engine, dataset: DataSet, state: State, evaluation: Measured) -> dict[str, Any]:
    """The record of a finished run."""
    config, here, head = engine.config, engine.world, engine.classifier.head
    origin = stamp(seconds=state.seconds, device=here.device)
    origin["machine"]["processes"] = here.size
    return origin | {
        "config": dataclasses.asdict(config),
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
