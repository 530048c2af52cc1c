"""The loss formulas as functions of `Scores`, with one loss per sample."""

from tammes.losses.adaface import adaface, clipped_angle
from tammes.losses.arcface import additive_angle, arcface
from tammes.losses.balanced_softmax import class_adjusted_softmax
from tammes.losses.circle import circle
from tammes.losses.combined import combined_margin
from tammes.losses.cosface import cosface
from tammes.losses.elasticface import elasticface
from tammes.losses.focal import focal
from tammes.losses.gm_softmax import gm_softmax
from tammes.losses.label_aware import label_aware
from tammes.losses.lm_softmax import lm_softmax
from tammes.losses.magface import magface
from tammes.losses.normface import normface
from tammes.losses.sample_margin import negative_mean_sample_margin, negative_sample_margin
from tammes.losses.sphereface import monotone_cosine, sphereface

__all__ = [
    "adaface",
    "additive_angle",
    "arcface",
    "circle",
    "class_adjusted_softmax",
    "clipped_angle",
    "combined_margin",
    "cosface",
    "elasticface",
    "focal",
    "gm_softmax",
    "label_aware",
    "lm_softmax",
    "magface",
    "monotone_cosine",
    "negative_mean_sample_margin",
    "negative_sample_margin",
    "normface",
    "sphereface",
]
