"""A trained run put to use: measured on other images, asked for the classes of image files."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from tammes import checks
from tammes.data import Batches, DataSet, load, normalise, read_image
from tammes.data.dataset import few
from tammes.data.images import SUFFIXES
from tammes.models import embed
from tammes.training.classifier import Classifier, DataFacts, load_data
from tammes.training.config import Config
from tammes.training.evaluation import evaluate
from tammes.training.folder import RunFolder, Which
from tammes.training.protocols import Classification, Measured, ReIdentification, protocol
from tammes.training.start import seen_as_by

BATCH = 128

Split = Literal["test", "train"]


def evaluate_run(
    folder: RunFolder,
    data: str | None = None,
    *,
    data_root: str | None = None,
    which: Which = "last",
    split: Split = "test",
    ranking: dict[str, Any] | None = None,
) -> Measured:
    """What a run does on its own data, or on other `data`, whose classes it must know unless they are people.

    Args:
        folder: the run.
        data: other data.
        data_root: where named data sets lie now, if not where they lay in training.
        which: the weights.
        split: training images are measured as images of known classes.
        ranking: for people, fields of `ReIdentification`: `metric` and `rerank`.
    """
    config, facts = folder.config, folder.facts
    config = config if data_root is None else dataclasses.replace(config, data_root=data_root)
    dataset = load_data(config) if data is None else _other_data(data, facts, config)
    dataset = seen_as_by(dataset, folder)
    classifier = folder.classifier(which)
    batches = Batches(dataset, split, batch_size=BATCH, training=False, workers=config.workers)
    test = protocol(dataset, batches, flip=config.test_flip)
    if split == "train" or isinstance(test, Classification):
        batches.labels = _labels_in(facts, dataset)[batches.labels]
        return evaluate(classifier, batches, flip=config.test_flip)
    if isinstance(test, ReIdentification):
        test = dataclasses.replace(test, **(ranking or {}))
    return test.measure(classifier)


def _other_data(data: str, facts: DataFacts, config: Config) -> DataSet:
    """`data` at the size that the run was trained with."""
    options = {"root": config.data_root, "max_unreadable": config.max_unreadable}
    dataset = load(data, image_size=facts.shape[1:], **options)
    if dataset.shape[0] != facts.shape[0]:
        raise ValueError(
            f"{data} has images of {dataset.shape[0]} channels, but the run was trained on {facts.shape[0]}."
        )
    return dataset


def _labels_in(facts: DataFacts, dataset: DataSet) -> torch.Tensor:
    """For each class of `dataset` its number in the run."""
    unknown = sorted(set(dataset.classes) - set(facts.classes))
    if unknown:
        raise ValueError(
            f"{dataset.name} has classes that the run was not trained on: {few(unknown)}. "
            f"It knows {few(list(facts.classes))}."
        )
    return torch.tensor([facts.classes.index(name) for name in dataset.classes])


class Prediction(NamedTuple):
    """The likeliest classes of one image with their probabilities, or why there are none."""

    path: str
    classes: list[tuple[str, float]]
    error: str | None = None


def image_files(paths: Sequence[str]) -> list[str]:
    """The files named, and the image files below the folders named, sorted."""
    found: list[str] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(str(p) for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        else:
            found.append(str(path))
    if not found:
        raise ValueError(f"There is no image in {', '.join(paths) or 'an empty list of paths'}.")
    return found


@torch.no_grad()
def predict(
    folder: RunFolder, paths: Sequence[str], *, top: int = 1, which: Which = "last"
) -> Iterator[Prediction]:
    """The `top` likeliest classes of each image file, by the softmax of the logits."""
    facts, flip = folder.facts, folder.config.test_flip
    checks.at_least("top", top, 1)
    if top > len(facts.classes):
        raise ValueError(f"top must be at most the {len(facts.classes)} classes there are, got {top}.")
    classifier = folder.classifier(which)
    for start in range(0, len(paths), BATCH):
        some = paths[start : start + BATCH]
        read = {path: _read(path, facts) for path in some}
        images = {path: image for path, image in read.items() if isinstance(image, np.ndarray)}
        found = _likeliest(classifier, facts, images, top, flip) if images else {}
        for path in some:
            image = read[path]
            yield Prediction(path, [], image) if isinstance(image, str) else Prediction(path, found[path])


def _likeliest(
    classifier: Classifier, facts: DataFacts, images: dict[str, np.ndarray], top: int, flip: bool
) -> dict[str, list[tuple[str, float]]]:
    """The likeliest classes of each image, under its path."""
    bytes_ = torch.from_numpy(np.stack(list(images.values()))).permute(0, 3, 1, 2)
    pixels = normalise(bytes_, torch.tensor(facts.mean), torch.tensor(facts.std))
    embeddings = embed(classifier.backbone, pixels, flip=flip)
    values, places = classifier.logits(embeddings).softmax(1).topk(top)
    named = [[facts.classes[place] for place in row] for row in places.tolist()]
    rows = [list(zip(names, row, strict=True)) for names, row in zip(named, values.tolist(), strict=True)]
    return dict(zip(images, rows, strict=True))


def _read(path: str, facts: DataFacts) -> np.ndarray | str:
    """The image, or why it cannot be read."""
    channels, height, width = facts.shape
    try:
        return read_image(path, (height, width), channels)
    except Exception as error:  # decoders of broken files raise nearly anything
        return f"{type(error).__name__}: {error}"
