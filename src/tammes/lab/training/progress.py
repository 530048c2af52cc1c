"""What a run tells its user: a plan before the first step, then its progress.

Progress is a live line in a terminal, and one plain line per epoch elsewhere.
"""

import os
import sys
import textwrap
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tammes._common.terminal import printable
from tammes.lab.data import DataSet, IdentitySet, InMemory, OnDisk
from tammes.lab.data.image_folders import sampled_sizes
from tammes.lab.data.loading import is_photo_folder
from tammes.lab.models.packaged_weights import HOW_TO_INSTALL, weights_installed
from tammes.lab.training.classifier import Classifier, DataFacts
from tammes.lab.training.config import SCRATCH_MODEL, ResolvedConfig
from tammes.lab.training.monitor import Record
from tammes.losses import LDAM, LMSoftmax, Objective, ZeroCentroid
from tammes.metrics.shot_groups import imbalanced

TERMINAL_WIDTH = 80
WORDS = {
    "CE": "cross-entropy",
    "Focal": "focal loss",
    "LSoftmax": "softmax with a margin on the angle of the true class",
    "NormFace": "softmax over cosines",
    "CosFace": "softmax over cosines with a margin",
    "ArcFace": "softmax over cosines with a margin on the angle",
    "SphereFace": "softmax over cosines with a multiple of the angle",
    "CombinedMargin": "softmax over cosines with several margins",
    "GMSoftmax": "softmax with general margins",
    "LMSoftmax": "largest-margin softmax",
    "LDAM": "softmax with larger margins for rare classes",
    "LabelAware": "softmax with larger margins for rare classes",
    "R_sm": "push each image away from other classes",
    "R_w": "keep the mean of the prototypes at zero",
    "MHE": "spread the prototypes apart",
}
"""The terms of an objective in words, by the names that the text form prints."""

TRIED_IMAGES = 8
TRIED_FILES = 8
FORWARD_SHARE = 0.35
"""Time of a forward pass relative to a training step; test images need only the former."""

SHARES = {"accuracy": "accuracy", "mAP": "mAP", "rank1": "rank-1"}
"""Metrics shown as percentages, and their labels."""


def run_plan(
    config: ResolvedConfig, dataset: DataSet, classifier: Classifier, device: torch.device
) -> dict[str, str]:
    """Data, network, objective and estimated time of a run, by topic."""
    return {
        "images": _images(dataset),
        "classes": _classes(dataset),
        "size": _size(dataset),
        "network": _network(config, classifier),
        "objective": objective_in_words(config.parsed),
        "device": _device(device),
        "time": _time(config, dataset, classifier, device),
    }


def plan_lines(plan: Mapping[str, str]) -> list[str]:
    """The topics of a plan in lines of at most 80 columns."""
    lines = []
    for topic, text in plan.items():
        lines += textwrap.wrap(
            printable(text), TERMINAL_WIDTH, initial_indent=f"{topic:10} ", subsequent_indent=11 * " "
        )
    return lines


def _device(device: torch.device) -> str:
    threads = torch.get_num_threads()
    return f"{device}, {threads} thread{'s' if threads > 1 else ''}" if device.type == "cpu" else str(device)


def _images(dataset: DataSet) -> str:
    train, test = len(dataset.train), len(dataset.test)
    return f"{train:,} to train on, {test:,} to test on ({dataset.split_origin})"


def _classes(dataset: DataSet) -> str:
    counts = dataset.class_counts.tolist()
    if max(counts) == min(counts):
        return f"{len(counts):,}, with {max(counts):,} training images each"
    fewest, most = min(counts), max(counts)
    rarest, largest = (dataset.classes[counts.index(count)] for count in (fewest, most))
    return f"{len(counts):,}; from {fewest:,} training images ({rarest!r}) to {most:,} ({largest!r})"


def _size(dataset: DataSet) -> str:
    _, height, width = dataset.shape
    shape = f"{height} x {width} pixels"
    files = _files(dataset)
    if not files:
        return shape
    if isinstance(dataset, IdentitySet):
        return f"{shape}, stretched"
    crop = " (in training, from a random crop)" if dataset.augmentation.crop is not None else ""
    sizes = sampled_sizes(files)
    least, most = min(sizes, default=(0, 0), key=_area), max(sizes, default=(0, 0), key=_area)
    spread = f"{least[0]} x {least[1]}" + (f" to {most[0]} x {most[1]}" if most != least else "")
    return f"{shape}, resized from the largest center crop{crop}; sampled files: {spread}"


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _files(dataset: DataSet) -> tuple[str, ...]:
    split = dataset.train
    if isinstance(split, OnDisk):
        return split.paths
    return split.files if isinstance(split, InMemory) else ()


def _network(config: ResolvedConfig, classifier: Classifier) -> str:
    count = sum(p.numel() for p in classifier.parameters()) / 1e6
    text = f"{config.model}, {count:.3g} million parameters, "
    if config.pretrained is not None:
        frozen = 100 * config.frozen_start
        first = f"; frozen for the first {frozen:.0f} % of the run" if frozen else ""
        return f"{text}pretrained{first}"
    text += f"started from {config.start}" if config.start else "trained from scratch"
    if could_be_fine_tuned(config):
        text += f"; to fine-tune a pretrained one instead: {HOW_TO_INSTALL}"
    return text


def could_be_fine_tuned(config: ResolvedConfig) -> bool:
    """Whether the run trains from scratch only because no pretrained weights are installed."""
    return (
        config.model == SCRATCH_MODEL
        and not config.from_scratch
        and config.start is None
        and is_photo_folder(config.data)
        and not weights_installed()
    )


def objective_in_words(objective: Objective) -> str:
    """An objective and what its terms do.

    >>> from tammes.losses import parse
    >>> objective_in_words(parse("NormFace(s=10) + 0.5*R_sm"))
    'NormFace(s=10) + 0.5*R_sm: softmax over cosines; push each image away from other classes'
    """
    names = [term.text_name for _, term in objective.weighted_terms]
    words = [WORDS[name] for name in names if name in WORDS]
    return f"{objective}: {'; '.join(words)}" if words else str(objective)


def _time(config: ResolvedConfig, dataset: DataSet, classifier: Classifier, device: torch.device) -> str:
    if config.minutes is not None:
        return f"{duration(60 * config.minutes)}, evaluations included"
    epochs = config.epochs or 0
    passes = len(dataset.train) + FORWARD_SHARE * len(dataset.test) / config.evaluate_every
    each = seconds_per_image(classifier, dataset.shape, device) + _decoding_seconds(dataset)
    return f"about {duration(epochs * passes * each)} for {epochs} epoch{'s' if epochs != 1 else ''}"


def seconds_per_image(classifier: Classifier, shape: tuple[int, int, int], device: torch.device) -> float:
    """Time of a training step per image, measured on black images without changing any weight."""
    was_training = classifier.training
    classifier.eval()  # batch-norm statistics must not see these images
    black = torch.zeros(TRIED_IMAGES, *shape, device=device).to(memory_format=torch.channels_last)
    seconds = 0.0
    try:
        for _ in range(2):
            start = time.perf_counter()
            embeddings = classifier.backbone(black)
            if embeddings.requires_grad:
                embeddings.sum().backward()
            embeddings.sum().item()  # wait for the device
            seconds = time.perf_counter() - start
    finally:
        classifier.zero_grad()
        classifier.train(was_training)
    return seconds / TRIED_IMAGES


def _decoding_seconds(dataset: DataSet) -> float:
    """Time to decode an image, divided by the number of cores; 0 for images in memory."""
    if not isinstance(dataset.train, OnDisk):
        return 0.0
    start = time.perf_counter()
    step = max(1, len(dataset.train) // TRIED_FILES)
    read = [dataset.train.read(index) for index in range(0, len(dataset.train), step)]
    return (time.perf_counter() - start) / len(read) / (os.cpu_count() or 1)


def duration(seconds: float) -> str:
    """Format an estimated time span.

    >>> duration(8.4), duration(130), duration(7300)
    ('8 s', '2 min', '2 h 2 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def imbalance_advice(config: ResolvedConfig, facts: DataFacts) -> str | None:
    """One line of advice if the classes are imbalanced and the config does nothing about it."""
    most, least = max(facts.class_counts), min(facts.class_counts)
    terms = [term for _, term in config.parsed.weighted_terms]
    handled = (
        any(isinstance(term, LDAM | ZeroCentroid) or term.need.class_logits for term in terms)
        or any(isinstance(term, LMSoftmax) and term.reduction == "lse" for term in terms)
        or config.sampling != "shuffled"
        or config.class_weights != "none"
        or config.logit_adjustment > 0
        or config.tau > 0
    )
    if handled or not imbalanced(facts.class_counts):
        return None
    return (
        f"Classes are imbalanced, {most / least:.0f}:1 ({most:,} to {least:,} images). Try "
        '--sampling balanced, or --objective "LDAM(s=30)" --class-weights effective --reweight-from 0.8.'
    )


class Terminal:
    """Shows a run on standard error: a bar that moves with every step, and a line for each evaluation.

    Args:
        title: name of the run, next to the bar.
        every_epoch: print a line for each evaluation.
        titled: begin these lines with the title, where several runs are shown.
    """

    def __init__(self, title: str, *, every_epoch: bool = True, titled: bool = False) -> None:
        self.every_epoch, self.titled = every_epoch, titled
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.title = title = printable(title)
        self.live = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("{task.fields[news]}"),
            console=self.console,
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self.task = self.live.add_task(title, total=1.0, news="")

    def __enter__(self) -> "Terminal":
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def announce(self, plan: dict[str, str]) -> None:
        """Print what the run will do."""
        for line in plan_lines(plan):
            self.live.console.print(line, markup=False)

    def tick(self, progress: float) -> None:
        """Move the bar, after every step."""
        self.live.update(self.task, completed=progress)

    def __call__(self, record: Record) -> None:
        if record["kind"] == "step":
            self.live.update(self.task, completed=record["progress"], news=step_line(record))
        elif self.every_epoch:
            title = f"{self.title}  " if self.titled else ""
            self.live.console.print(f"{title}{epoch_line(record)}", markup=False)


def step_line(record: Record) -> str:
    """Summary of a step."""
    return f"epoch {record['epoch'] + 1}  {record['samples_per_second']:,.0f}/s  loss {record['loss']:.3f}"


def epoch_line(record: Record) -> str:
    """Summary of an evaluation, in one line of at most 80 columns."""
    parts = [
        f"epoch {record['epoch'] + 1}",
        *(f"{word} {100 * record[name]:.2f} %" for name, word in SHARES.items() if name in record),
        *(f"{name[:-4]} AUC {100 * value:.2f} %" for name, value in record.items() if name.endswith("_auc")),
        margin_in_words(record, of="of"),
        duration(record["seconds"]),
    ]
    while len("  ".join(parts)) > TERMINAL_WIDTH:
        parts.pop()
    return "  ".join(parts)


def margin_in_words(metrics: Mapping[str, Any], *, of: str = "of at most") -> str:
    """The class margin against its maximum.

    >>> margin_in_words({"class_margin_deg": 73.6, "class_margin_maximum_deg": 98.2})
    'class margin 74 of at most 98 degrees (75 %)'
    """
    margin, maximum = metrics["class_margin_deg"], metrics["class_margin_maximum_deg"]
    return f"class margin {margin:.0f} {of} {maximum:.0f} degrees ({100 * margin / maximum:.0f} %)"
