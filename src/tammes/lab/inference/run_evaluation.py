"""Evaluate a trained run on its own data or on other data."""

import dataclasses
from typing import Any, Literal

import torch

from tammes._common.wording import few
from tammes.lab.data import Batches, DataSet, load
from tammes.lab.training.classifier import DataFacts, load_data
from tammes.lab.training.config import ResolvedConfig
from tammes.lab.training.embedder import EMBED_BATCH
from tammes.lab.training.evaluation import Classification, Measured, ReIdentification, protocol
from tammes.lab.training.photos import with_photos
from tammes.lab.training.run_folder import RunFolder, Which
from tammes.lab.training.warm_start import seen_as_by
from tammes.metrics.classification import Evaluation

SplitName = Literal["test", "train"]


def evaluate_run(
    folder: RunFolder,
    data: str | None = None,
    *,
    data_root: str | None = None,
    which: Which = "last",
    split: SplitName = "test",
    ranking: dict[str, Any] | None = None,
    photos: bool = False,
) -> Measured:
    """Evaluate a run on its own data or on other `data`.

    The classes of other data must be training classes of the run, except for re-identification.

    Args:
        folder: the run.
        data: other data.
        data_root: root of named data sets, if it has changed since training.
        which: the weights of the last checkpoint, or the best ones.
        split: with "train", images are evaluated as images of training classes, without pairs or queries.
        ranking: for re-identification, fields of `ReIdentification`: `metric` and `rerank`.
        photos: keep thumbnails of selected images for the report.
    """
    config, facts = folder.config, folder.facts
    config = config if data_root is None else dataclasses.replace(config, data_root=data_root)
    dataset = load_data(config, facts.shape[1:]) if data is None else _other_data(data, facts, config)
    dataset = seen_as_by(dataset, folder)
    classifier = folder.classifier(which)
    batches = Batches(dataset, split, batch_size=EMBED_BATCH, training=False, workers=config.workers)
    test = protocol(dataset, batches, flip=config.test_flip, autocast=config.autocast)
    if split == "train":
        test = Classification(dataset, batches, config.test_flip, config.autocast)
    if isinstance(test, Classification):
        batches.labels = _labels_in(facts, dataset)[batches.labels]
    if isinstance(test, ReIdentification):
        test = dataclasses.replace(test, **(ranking or {}))
    found = test.measure(classifier)
    if photos and isinstance(found, Evaluation):
        return dataclasses.replace(found, arrays=with_photos(found.arrays, dataset.split(split)))
    return found


def _other_data(data: str, facts: DataFacts, config: ResolvedConfig) -> DataSet:
    """Load `data` at the image size of the run."""
    options = {"root": config.data_root, "max_unreadable": config.max_unreadable}
    dataset = load(data, image_size=facts.shape[1:], **options)
    if dataset.shape[0] != facts.shape[0]:
        raise ValueError(
            f"{data} has images of {dataset.shape[0]} channels, but the run was trained on {facts.shape[0]}."
        )
    return dataset


def _labels_in(facts: DataFacts, dataset: DataSet) -> torch.Tensor:
    """The label in the run of each class of `dataset`."""
    unknown = sorted(set(dataset.classes) - set(facts.classes))
    if unknown:
        raise ValueError(
            f"{dataset.name} has classes that the run was not trained on: {few(unknown)}. "
            f"Its classes are {few(list(facts.classes))}."
        )
    return torch.tensor([facts.classes.index(name) for name in dataset.classes])
