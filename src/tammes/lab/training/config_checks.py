"""Validate the settings of a run: each one alone, then combinations."""

from typing import TYPE_CHECKING, get_args

from tammes._common import checks
from tammes.lab.data.batches import SAMPLINGS
from tammes.lab.data.identity_sampling import IDENTITIES
from tammes.lab.training.config import USUAL_LR, Schedule
from tammes.lab.training.margin_warmup import MARGINS
from tammes.losses import LMSoftmax, Objective, ZeroCentroid
from tammes.losses._engine.objective_plan import logit_space

if TYPE_CHECKING:
    from tammes.lab.training.config import Config, ConfigFields

LEARNS = ("all", "prototypes", "lengths", "nothing")

LOWEST = {
    "embedding": 1,
    "image_size": 1,
    "max_unreadable": 0,
    "epochs": 1,
    "patience": 1,
    "evaluate_every": 1,
    "batch_size": 1,
    "images_per_person": 1,
    "accumulate": 1,
    "centers": 1,
    "seed": 0,
    "workers": 0,
    "log_every": 1,
}
POSITIVE = ("lr", "prototype_lr", "norm_bias_factor", "clip", "minutes", "sample_rate", "checkpoint_seconds")
FRACTIONS = ("momentum", "warmup", "hold_out", "effective_beta", "reweight_from", "frozen_start")
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
WORDS = {
    "optimizer": tuple(USUAL_LR),
    "schedule": get_args(Schedule),
    "autocast": ("none", "auto", "bf16", "fp16"),
    "prototype_init": ("random", "packed", "linear"),
    "augment_style": ("fast", "standard", "photos"),
    "sampling": (*SAMPLINGS, IDENTITIES),
    "class_weights": ("none", "effective"),
    "learns": LEARNS,
}


def check_fields(config: "ConfigFields") -> None:
    """Check that each setting is in its range or among its choices."""
    settings = config.settings()
    given = {name: value for name, value in settings.items() if value is not None}
    for name in [name for name in LOWEST if name in given]:
        checks.at_least(name, given[name], LOWEST[name])
    for name in [name for name in POSITIVE if name in given]:
        checks.positive(name, given[name])
    for name in [name for name in NOT_NEGATIVE if name in given]:
        checks.within(name, given[name], 0.0, 1e6)
    for name in [name for name in FRACTIONS if name in given]:
        checks.within(name, given[name], 0.0, 1.0)
    for name in [name for name in WORDS if name in given]:
        checks.one_of(name, given[name], WORDS[name])
    if config.batch_size is not None and config.accumulate > config.batch_size:
        raise ValueError(
            f"accumulate must be at most batch_size, got accumulate={config.accumulate}, "
            f"batch_size={config.batch_size}."
        )
    if config.last_stride not in (1, 2):
        raise ValueError(f"last_stride must be 1 or 2, got {config.last_stride}.")
    if config.sample_rate is not None:
        checks.within("sample_rate", config.sample_rate, 0.0, 1.0, "It is a fraction of the classes.")
    for share in config.milestones:
        checks.within("A milestone", share, 0.0, 1.0, "It is a fraction of the run.")
    if config.seed >= 2**63:
        raise ValueError(f"seed must be below 2**63, got {config.seed}.")


def check_config(config: "Config", objective: Objective) -> None:
    """Check that the settings work together."""
    check_optimization(config)
    check_objective(config, objective)
    check_weighting(config, objective)
    check_stage(config, objective)


def check_optimization(config: "Config") -> None:
    """Check schedule, optimizer, triplet loss and initial weights."""
    if config.triplet and config.mixup:
        raise ValueError(f"The triplet loss needs hard labels, got mixup={config.mixup}. Leave one out.")
    if config.schedule == "one-cycle" and config.warmup:
        raise ValueError(
            f"The one-cycle schedule has its own warm-up, got warmup={config.warmup}. Leave it out."
        )
    if config.nesterov and (config.optimizer != "sgd" or not config.momentum):
        raise ValueError("nesterov needs optimizer='sgd' with momentum. Leave it out.")
    if config.from_scratch and config.pretrained is not None:
        raise ValueError(f"from_scratch contradicts pretrained={config.pretrained!r}. Leave one out.")


def check_objective(config: "Config", objective: Objective) -> None:
    """Check that the objective is a scalar per batch and supports accumulation and margin warm-up."""
    reductions = {t.reduction: t for _, t in objective.weighted_terms if isinstance(t, LMSoftmax)}
    if "none" in reductions:
        raise ValueError(
            f'{reductions["none"]} is not a scalar, so it cannot be minimized. Use reduction="mean" or "lse".'
        )
    if "lse" in reductions and config.accumulate > 1:
        raise ValueError(
            f"{reductions['lse']} is one value of the whole batch and cannot be accumulated over "
            f'accumulate={config.accumulate} parts. Use accumulate=1, or reduction="mean".'
        )
    if config.centers > 1 and config.prototype_init == "packed":
        raise ValueError(
            f"prototype_init='packed' places one prototype per class, got centers={config.centers}. "
            "Use prototype_init='random'."
        )
    if config.margin_warmup and not any(type(term) in MARGINS for _, term in objective.weighted_terms):
        raise ValueError(f"margin_warmup needs a loss with a margin, got {objective}. Leave it out.")


def check_weighting(config: "Config", objective: Objective) -> None:
    """Check that sampling, class weights and R_w are compatible."""
    if config.class_weights != "none" and config.accumulate > 1:
        raise ValueError(
            f"A class-weighted mean cannot be accumulated over accumulate={config.accumulate} parts. "
            "Use accumulate=1, or sampling='balanced'."
        )
    if config.class_weights != "none" and config.effective_beta == 1:
        raise ValueError("effective_beta must be below 1, got 1. Try 0.9999.")
    if config.reweight_from == 1:
        raise ValueError("reweight_from=1 is the end of the run, so weights would never apply. Try 0.8.")
    if config.reweight_from and config.class_weights == "none":
        raise ValueError(f"reweight_from={config.reweight_from} needs class_weights. Leave it out.")
    lowest = min((c for c, term in objective.weighted_terms if isinstance(term, ZeroCentroid)), default=0.0)
    if lowest < 0:
        raise ValueError(
            f"R_w must have a positive coefficient, got {lowest:g}: it would pull prototypes together."
        )


def check_stage(config: "Config", objective: Objective) -> None:
    """Check that settings of a later stage have a `start` and have an effect."""
    later = {
        "learns": config.learns != "all",
        "fresh_prototypes": config.fresh_prototypes,
        "tau": config.tau > 0,
        "shift_batch_norm": config.shift_batch_norm,
    }
    if config.start is None and any(later.values()):
        name = next(name for name, given in later.items() if given)
        raise ValueError(f"{name}={getattr(config, name)!r} needs start: the folder of a finished run.")
    if config.shift_batch_norm and config.learns == "all":
        raise ValueError("shift_batch_norm is for frozen backbones, got learns='all'. Leave it out.")
    if config.shift_batch_norm and config.learns == "nothing":
        raise ValueError(
            "shift_batch_norm needs a run that processes images, got learns='nothing'. Leave it out."
        )
    if config.fresh_prototypes and config.tau:
        raise ValueError(
            f"Fresh prototypes have no trained norms to divide by, got tau={config.tau}. Leave it out."
        )
    if config.learns == "lengths" and config.optimizer != "sgd":
        raise ValueError(f"learns='lengths' needs optimizer='sgd', got {config.optimizer!r}.")
    if config.learns in ("prototypes", "lengths") and not config.trainable_prototypes:
        raise ValueError(f"learns={config.learns!r} needs trainable_prototypes, or nothing is trained.")
    if (config.tau or config.learns == "lengths") and logit_space(objective) != "raw":
        raise ValueError(
            f"{objective} ignores prototype norms, so tau and learns='lengths' would change "
            "nothing. Use a loss of raw inner products, such as CE."
        )
