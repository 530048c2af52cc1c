"""Multi-stage methods as data: the settings that each stage changes."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tammes.lab.training.config import Config
from tammes.lab.training.loop import train
from tammes.lab.training.monitor import Sink


@dataclass(frozen=True)
class Stage:
    """One stage: the name of its folder, and the settings that differ from the first stage."""

    name: str
    settings: Mapping[str, Any]


RETRAINED: dict[str, Any] = {"learns": "prototypes", "sampling": "balanced", "epochs": 10}

CRT = Stage("crt", RETRAINED | {"fresh_prototypes": True})
"""Classifier re-training (cRT): new prototypes, frozen features, balanced sampling (Kang et al. 2020)."""

LWS = Stage("lws", RETRAINED | {"learns": "lengths", "optimizer": "sgd"})
"""Learnable weight scaling (LWS): only the prototype norms are trained (Kang et al. 2020)."""

TAU = Stage("tau", {"learns": "nothing", "tau": 0.7})
"""Tau-normalization: prototype norms to the power 1 - tau, without training (Kang et al. 2020)."""

MISLAS = Stage("mislas", RETRAINED | {"objective": "LAS(head=0.3, tail=0)", "shift_batch_norm": True})
"""Label-aware smoothing and shifted batch norm, after mixup in the first stage (Zhong et al. 2021)."""


FIRST_ONLY: dict[str, Any] = {
    "mixup": 0.0,
    "margin_warmup": 0.0,
    "class_weights": "none",
    "reweight_from": 0.0,
    "logit_adjustment": 0.0,
}
"""Settings of the first stage that later stages do not inherit."""


def after(first: Config, stage: Stage, start: str | Path, **changes: Any) -> Config:
    """The config of `stage`, initialized from the run in `start`, which was trained with `first`.

    Mixup, margin warm-up and other corrections for class imbalance end with the first stage.
    """
    settings: dict[str, Any] = {**FIRST_ONLY, "start": str(start), **stage.settings, **changes}
    return dataclasses.replace(first, **settings)


def train_stages(
    first: Config, stages: Sequence[Stage], out: str | Path, *, sinks: Sequence[Sink] = ()
) -> list[dict[str, Any]]:
    """Train `first` in `out/first`, then each stage in a folder of its name, initialized from the one before.

    If killed at any point, call it again with the same arguments: it resumes and ends with the same result.
    """
    folders = [Path(out) / name for name in ("first", *(stage.name for stage in stages))]
    later = [after(first, stage, start) for stage, start in zip(stages, folders, strict=False)]
    # Build, and thereby validate, all configs before the first stage is trained.
    return [
        train(config, folder, resume=True, sinks=sinks)
        for config, folder in zip((first, *later), folders, strict=True)
    ]
