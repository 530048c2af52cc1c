"""What settings for skewed classes and for later stages ask of the others."""

from typing import TYPE_CHECKING

from tammes import checks
from tammes.data.identity_sampling import IDENTITIES
from tammes.data.sampling import SAMPLINGS
from tammes.losses import Objective, ZeroCentroid
from tammes.losses.objective import logit_space

if TYPE_CHECKING:
    from tammes.training.config import Config

LEARNS = ("all", "prototypes", "lengths", "nothing")


def check_weighting(config: "Config", objective: Objective) -> None:
    """Sampling, class weights and R_w make sense together."""
    checks.one_of("sampling", config.sampling, (*SAMPLINGS, IDENTITIES))
    checks.one_of("class_weights", config.class_weights, ("none", "effective"))
    if config.class_weights != "none" and config.accumulate > 1:
        raise ValueError(
            f"A mean by class weights does not add up over accumulate={config.accumulate} parts. "
            "Use accumulate=1, or sampling='balanced'."
        )
    if config.class_weights != "none" and config.effective_beta == 1:
        raise ValueError("effective_beta must be below 1, got 1. Try 0.9999.")
    if config.reweight_from == 1:
        raise ValueError("reweight_from=1 is the end of the run, where weights never apply. Try 0.8.")
    if config.reweight_from and config.class_weights == "none":
        raise ValueError(f"reweight_from={config.reweight_from} needs class_weights. Leave it out.")
    lowest = min((c for c, term in objective.terms if isinstance(term, ZeroCentroid)), default=0.0)
    if lowest < 0:
        raise ValueError(
            f"R_w must have a positive coefficient, got {lowest:g}: it would pull prototypes together."
        )


def check_stage(config: "Config", objective: Objective) -> None:
    """What belongs to a later stage has a start, and something that it changes."""
    checks.one_of("learns", config.learns, LEARNS)
    later = {
        "learns": config.learns != "all",
        "fresh_prototypes": config.fresh_prototypes,
        "tau": config.tau > 0,
        "shift_batch_norm": config.shift_batch_norm,
    }
    if config.start is None and any(later.values()):
        name = next(name for name, given in later.items() if given)
        raise ValueError(f"{name}={getattr(config, name)!r} needs a start: the folder of a finished run.")
    if config.shift_batch_norm and config.learns == "all":
        raise ValueError("shift_batch_norm is for frozen networks, got learns='all'. Leave it out.")
    if config.shift_batch_norm and config.learns == "nothing":
        raise ValueError("shift_batch_norm needs a run that sees images, got learns='nothing'. Leave it out.")
    if config.fresh_prototypes and config.tau:
        raise ValueError(
            f"Fresh prototypes have no lengths to divide by, got tau={config.tau}. Leave it out."
        )
    if config.learns == "lengths" and config.optimizer != "sgd":
        raise ValueError(f"learns='lengths' needs optimizer='sgd', got {config.optimizer!r}.")
    if config.learns in ("prototypes", "lengths") and not config.trainable_prototypes:
        raise ValueError(f"learns={config.learns!r} needs trainable_prototypes, or nothing learns.")
    if (config.tau or config.learns == "lengths") and logit_space(objective)[0] != "raw":
        raise ValueError(
            f"The lengths of prototypes do not matter to {objective}, so tau and learns='lengths' change "
            "nothing. Use a loss of raw inner products, as CE."
        )
