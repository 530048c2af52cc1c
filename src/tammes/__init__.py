"""Learning towards the largest margins: margin losses, prototype heads and sphere packings for PyTorch."""

from tammes.geometry.margins import class_margin, gamma_min, gamma_per_class, sample_margins
from tammes.heads import PrototypeHead
from tammes.losses import MixedLabels, parse
from tammes.losses.advice import suggest_scale

__version__ = "0.1.0"

__all__ = [
    "MixedLabels",
    "PrototypeHead",
    "class_margin",
    "gamma_min",
    "gamma_per_class",
    "parse",
    "sample_margins",
    "suggest_scale",
]
