"""Methods of several stages as data: the settings that each stage changes."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tammes.training.config import Config, unsettled
from tammes.training.loop import train
from tammes.training.sinks import Sink


@dataclass(frozen=True)
class Stage:
    """One run of several: what its folder is called, and how its settings differ from the first stage's."""

    name: str
    settings: Mapping[str, Any]


RETRAINED: dict[str, Any] = {"learns": "prototypes", "sampling": "balanced", "epochs": 10}

CRT = Stage("crt", RETRAINED | {"fresh_prototypes": True})
"""Classifier re-training: new prototypes on balanced samples of frozen features (Kang et al. 2020)."""

LWS = Stage("lws", RETRAINED | {"learns": "lengths", "optimizer": "sgd"})
"""Learnable weight scaling: only the lengths of the prototypes learn (Kang et al. 2020)."""

TAU = Stage("tau", {"learns": "nothing", "tau": 0.7})
"""Tau-normalisation: lengths to the power 1 - tau, nothing learns (Kang et al. 2020)."""

MISLAS = Stage("mislas", RETRAINED | {"objective": "LAS(head=0.3, tail=0)", "shift_batch_norm": True})
"""Label-aware smoothing and shifted batch norm, after mixup in the first stage (Zhong et al. 2021)."""


FIRST_ONLY: dict[str, Any] = {
    "mixup": 0.0,
    "margin_warmup": 0.0,
    "class_weights": "none",
    "reweight_from": 0.0,
    "logit_adjustment": 0.0,
}
"""Settings of a first stage that a later one does not inherit."""


def after(first: Config, stage: Stage, start: str | Path, **changes: Any) -> Config:
    """The config of `stage`, which starts from the run in `start` that `first` made.

    Mixup, growing margins and what else corrects class sizes end with the first stage.
    """
    settled = dict.fromkeys(unsettled(first))  # these follow from what the stage changes
    settings: dict[str, Any] = {**settled, **FIRST_ONLY, "start": str(start), **stage.settings, **changes}
    return dataclasses.replace(first, **settings)


def train_stages(
    first: Config, stages: Sequence[Stage], out: str | Path, *, sinks: Sequence[Sink] = ()
) -> list[dict[str, Any]]:
    """Train `first` into `out/first`, then each stage into a folder of its name, from where the last ended.

    Killed at any moment, between stages or within one, and repeated it comes to the same end.
    """
    folders = [Path(out) / name for name in ("first", *(stage.name for stage in stages))]
    later = [after(first, stage, start) for stage, start in zip(stages, folders, strict=False)]
    # All configs are made, and checked, before the first stage takes its time.
    return [
        train(config, folder, resume=True, sinks=sinks)
        for config, folder in zip((first, *later), folders, strict=True)
    ]
