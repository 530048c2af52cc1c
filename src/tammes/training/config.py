"""Everything that decides a run: the flags of `tammes train`, and the `config.json` of a run."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import tammes
from tammes import checks
from tammes.data.imbalance import parse_imbalance
from tammes.losses import LMSoftmax, Objective, parse
from tammes.training.conditions import check_stage, check_weighting
from tammes.training.schedules import MARGINS, SCHEDULES

FORMAT = 1
"""Raised when a `config.json` of this version could be misread by an older one."""

USUAL_LR = {"adamw": 2e-3, "adam": 3.5e-4, "sgd": 0.1}
USUAL_DECAY = {"adamw": 0.05, "adam": 5e-4, "sgd": 1e-4}
USUAL_EPOCHS = 20


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run, complete: the same config gives the same run.

    What is left at None is settled when the config is made, except for `embedding`, `minutes`, `clip`,
    `patience`, `sample_rate` (none) and `image_size` (the images' own).

    >>> Config(data="digits").lr
    0.002
    """

    data: str
    """digits, mnist, fashion-mnist, cifar10, cifar100, market1501, dukemtmc-reid, lfw-view1, an .npz file, a
    folder of images or records, a .txt list of images, or a .csv list of people and cameras."""
    objective: str = "NormFace(s=10) + 0.5*R_sm"
    """Losses and regularisers, as in "CosFace(s=64, m=0.35) + 0.5*R_sm + 100*R_w"."""
    model: str = "fastnet-half"
    """cnn4, cnn4-hidden, resnet18, resnet34, resnet-small, fastnet, fastnet-half, for faces iresnet18 (34,
    50, 100, -mini) and mobilefacenet, or timm/NAME, as in timm/resnet50."""
    embedding: int | None = None
    """Width of a linear layer before the prototypes; none by default."""

    data_root: str = "data"
    """Where named data sets, and the images of lists, lie."""
    download: bool = False
    """Fetch a missing named data set into the data root."""
    image_size: int | None = None
    """Side that images are scaled to, of people the height; by default their own, doubled where the model
    needs larger ones, and 256 for people."""
    max_unreadable: int = 100
    """So many broken image files are skipped; more are an error."""
    augment: bool = True
    """Shift, mirror and crop training images as suits the data set."""
    mixup: float = 0.0
    """Mix pairs of images by a share drawn from Beta(mixup, mixup); 0 for none."""

    imbalance: str | None = None
    """Thin out the training classes: long_tailed:100, step:10, or step:10:0.3 for 3 in 10 classes rare."""
    hold_out: float = 0.0
    """Evaluate on this share of the training images in place of the test images: to choose settings by."""
    sampling: Literal["shuffled", "balanced", "identities"] = "shuffled"
    """An epoch draws each image once, each class equally often, or batches of a few images of each person."""
    class_weights: Literal["none", "effective"] = "none"
    """Weigh each class by the inverse of its effective number of images (class-balanced loss)."""
    effective_beta: float = 0.9999
    """How soon more images of a class stop counting, for class weights: closer to 1, later."""
    reweight_from: float = 0.0
    """Share of the run from which class weights apply; 0.8 defers them to its last fifth (DRW)."""
    logit_adjustment: float = 0.0
    """Predict by logits less so many times the logarithm of each class's share of the training images."""

    start: str | None = None
    """Folder of a finished run whose network and prototypes this one starts from."""
    learns: Literal["all", "prototypes", "lengths", "nothing"] = "all"
    """What learns after a start: all; prototypes on frozen features (cRT); their lengths (LWS); nothing."""
    fresh_prototypes: bool = False
    """Prototypes anew, in place of those of the start."""
    tau: float = 0.0
    """Divide each prototype of the start by its length to this power (tau-normalisation)."""
    shift_batch_norm: bool = False
    """The batch statistics of a frozen network follow the samples of this run (MiSLAS)."""

    epochs: int | None = None
    """Passes over the data; 20 by default, unless minutes are given."""
    minutes: float | None = None
    """Time to train for; the schedule is stretched over it. With epochs, whichever ends first."""
    patience: int | None = None
    """Stop after so many evaluations without a better accuracy, or mAP."""
    evaluate_every: int = 1
    """Epochs from one evaluation to the next; the end of the run is always evaluated."""
    batch_size: int = 128
    """Samples per step, over all ranks and parts together."""
    accumulate: int = 1
    """Parts that a batch is computed in, one after the other, to save memory."""

    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """Adamw suits every objective; for sgd the learning rate must fall as the scale s grows."""
    lr: float | None = None
    """Learning rate at its peak; by default 0.002 for adamw, 0.00035 for adam, 0.1 for sgd."""
    momentum: float = 0.9
    """Of sgd; the first beta of adamw and adam."""
    nesterov: bool = False
    """Nesterov's momentum, for sgd."""
    weight_decay: float | None = None
    """Of the network; by default 0.05 for adamw, 0.0005 for adam, 0.0001 for sgd."""
    schedule: Literal["cosine", "one-cycle", "step", "polynomial", "constant"] = "cosine"
    """How the learning rates go: cosine to zero; up for a quarter, then down to zero; tenths; the square of
    what is left of the run; not at all."""
    warmup: float = 0.0
    """Share of the run over which the learning rates rise from a hundredth."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """Shares of the run at which the step schedule divides by ten."""
    clip: float | None = None
    """Largest norm of the gradient of all parameters together."""

    prototype_init: Literal["random", "packed"] = "random"
    """Prototypes start at random, or as far apart as they can be."""
    prototype_lr: float | None = None
    """Learning rate of the prototypes; by default the network's."""
    prototype_weight_decay: float = 0.0
    """Weight decay of the prototypes."""
    trainable_prototypes: bool = True
    """Whether the prototypes learn."""
    unit_prototypes: bool | None = None
    """Scale prototypes to norm 1 after each step; by default where the objective does not see their norms.
    Otherwise they grow at right angles to themselves, and a step turns them less and less."""
    margin_warmup: float = 0.0
    """Epochs over which the margins of the losses grow from nothing."""
    sample_rate: float | None = None
    """Train on the classes of the batch and this share of the others, drawn anew each step; on all by
    default."""

    neck: bool = False
    """Batch norm without a shift between the embeddings and the prototypes (BNNeck)."""
    last_stride: int = 2
    """1 keeps the last stage of a timm ResNet at the resolution of the one before."""
    pretrained: str | None = None
    """Weights that a timm network starts from: a .safetensors file, or "timm" to fetch what it publishes."""
    triplet: float = 0.0
    """Weight of the batch-hard triplet loss on the embeddings before the neck; 0 for none."""
    triplet_margin: float | None = 0.3
    """Margin of the triplet loss; None for the soft margin."""
    images_per_person: int = 4
    """Images of each person in a batch, for sampling by identities."""

    autocast: Literal["none", "bf16", "fp16"] = "none"
    """Run the network in half precision; losses stay in float32."""
    compile: bool = False
    """Compile the network with torch.compile."""
    test_flip: bool = False
    """Evaluate the mean embedding of each image and its mirror image."""

    seed: int = 0
    """Of weights, order, augmentation and dropout."""
    deterministic: bool = False
    """Only deterministic algorithms on GPUs, slower; on CPUs runs repeat anyway."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    workers: int = 2
    """Processes that decode image files; sets held in memory need none."""

    log_every: int = 20
    """Steps between two lines of log.jsonl."""
    checkpoint_seconds: float = 300.0
    """Write a checkpoint at least so often, besides at the end of each epoch of a second or more."""
    tensorboard: bool = False
    """Write TensorBoard's files as well."""

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_words()
        parsed = parse(self.objective)
        self._check_objective(parsed)
        check_weighting(self, parsed)
        check_stage(self, parsed)
        self._settle("objective", str(parsed), anew=True)
        self._settle("lr", USUAL_LR[self.optimizer])
        self._settle("prototype_lr", self.lr)
        self._settle("weight_decay", USUAL_DECAY[self.optimizer])
        self._settle("unit_prototypes", all(term.need.space != "raw" for _, term in parsed.terms))
        if self.minutes is None:
            self._settle("epochs", USUAL_EPOCHS)
        self._settle("milestones", tuple(float(m) for m in self.milestones), anew=True)

    def _settle(self, name: str, value: Any, *, anew: bool = False) -> None:
        if anew or getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        for name, low in LEAST.items():
            if getattr(self, name) is not None:
                checks.at_least(name, getattr(self, name), low)
        for name in ("lr", "prototype_lr", "clip", "minutes", "sample_rate"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name))
        if self.sample_rate is not None:
            checks.within("sample_rate", self.sample_rate, 0.0, 1.0, "It is a share of the classes.")
        for name in ("momentum", "warmup", "hold_out", "effective_beta", "reweight_from"):
            checks.within(name, getattr(self, name), 0.0, 1.0)
        for name in NOT_NEGATIVE:
            if getattr(self, name) is not None:
                checks.within(name, getattr(self, name), 0.0, 1e6)
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2**63, got {self.seed}.")
        checks.positive("checkpoint_seconds", self.checkpoint_seconds)
        for share in self.milestones:
            checks.within("A milestone", share, 0.0, 1.0, "It is a share of the run.")

    def _check_words(self) -> None:
        checks.one_of("optimizer", self.optimizer, tuple(USUAL_LR))
        checks.one_of("schedule", self.schedule, SCHEDULES)
        checks.one_of("autocast", self.autocast, ("none", "bf16", "fp16"))
        checks.one_of("prototype_init", self.prototype_init, ("random", "packed"))
        if self.imbalance is not None:
            self._settle("imbalance", str(parse_imbalance(self.imbalance)), anew=True)
        self._check_people()
        if self.schedule == "one-cycle" and self.warmup:
            raise ValueError(
                f"The one-cycle schedule has its own rise, got warmup={self.warmup}. Leave it out."
            )
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise ValueError("nesterov needs optimizer='sgd' with momentum. Leave it out.")
        if self.accumulate > self.batch_size:
            raise ValueError(
                f"accumulate must give each part a sample, got accumulate={self.accumulate}, "
                f"batch_size={self.batch_size}."
            )

    def _check_people(self) -> None:
        if self.last_stride not in (1, 2):
            raise ValueError(f"last_stride must be 1 or 2, got {self.last_stride}.")
        if self.triplet and self.mixup:
            raise ValueError(f"A triplet loss needs whole labels, got mixup={self.mixup}. Leave one out.")

    def _check_objective(self, objective: Objective) -> None:
        reductions = {t.reduction: t for _, t in objective.terms if isinstance(t, LMSoftmax)}
        if "none" in reductions:
            raise ValueError(f'{reductions["none"]} is no number to minimise. Use reduction="mean" or "lse".')
        if "lse" in reductions and self.accumulate > 1:
            raise ValueError(
                f"{reductions['lse']} is one value of the whole batch and does not add up over "
                f'accumulate={self.accumulate} parts. Use accumulate=1, or reduction="mean".'
            )
        if self.margin_warmup and not any(type(term) in MARGINS for _, term in objective.terms):
            raise ValueError(f"margin_warmup needs a loss with a margin, got {objective}. Leave it out.")

    def to_json(self) -> str:
        """The text of `config.json`."""
        head = {"format": FORMAT, "tammes": tammes.__version__}
        return json.dumps(head | dataclasses.asdict(self), indent=2) + "\n"


def unsettled(config: Config) -> list[str]:
    """The fields whose values follow from the others: left at None they would be the same."""
    names = ("lr", "prototype_lr", "weight_decay", "unit_prototypes", "epochs")
    return [name for name in names if dataclasses.replace(config, **{name: None}) == config]


NOT_NEGATIVE = (
    "weight_decay",
    "prototype_weight_decay",
    "mixup",
    "margin_warmup",
    "logit_adjustment",
    "tau",
    "triplet",
    "triplet_margin",
)
LEAST = {
    "embedding": 1,
    "image_size": 1,
    "max_unreadable": 0,
    "epochs": 1,
    "patience": 1,
    "evaluate_every": 1,
    "batch_size": 1,
    "images_per_person": 1,
    "accumulate": 1,
    "seed": 0,
    "workers": 0,
    "log_every": 1,
}


def read_config(path: str | Path) -> Config:
    """The config in the file `path`; fields it does not name have their defaults."""
    try:
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error
    if not isinstance(stored, dict):
        raise ValueError(f"{path} must hold one JSON object, got a {type(stored).__name__}.")
    form, version = stored.pop("format", FORMAT), stored.pop("tammes", "an unknown version")
    if not isinstance(form, int) or form > FORMAT:
        raise ValueError(
            f"{path} was written by tammes {version} in format {form}; this is {tammes.__version__}, which "
            f"reads up to {FORMAT}. Upgrade tammes to use it."
        )
    return _from_fields(path, stored)


def _from_fields(path: str | Path, stored: dict[str, Any]) -> Config:
    fields = {field.name: field.type for field in dataclasses.fields(Config)}
    for name, value in stored.items():
        if name not in fields:
            raise ValueError(f"{path} has an unknown setting {name!r}. {checks.nearest(name, fields)}")
        if type(value) not in _json_types(fields[name]):
            raise ValueError(f"{path}: {name} cannot be {value!r}.")
    if "data" not in stored:
        raise ValueError(f"{path} does not name the data.")
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
    return Config(**values)


def _json_types(annotation: Any) -> set[type]:
    """What JSON may hold for a field so annotated."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    found = {str if get_origin(kind) is Literal else get_origin(kind) or kind for kind in kinds}
    return found | ({int} if float in found else set()) | ({list} if tuple in found else set())
