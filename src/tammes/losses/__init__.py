"""Every loss and regulariser of the paper, as terms that add and scale, and as functions of `Scores`."""

from tammes.losses.arcface import ArcFace, arcface
from tammes.losses.catalogue import CATALOGUE
from tammes.losses.class_balance import effective_number_weights
from tammes.losses.combined import CombinedMargin, combined_margin
from tammes.losses.cosface import AMSoftmax, CosFace, cosface
from tammes.losses.cross_entropy import CrossEntropy
from tammes.losses.focal import Focal, focal
from tammes.losses.gm_softmax import GMSoftmax, gm_softmax
from tammes.losses.label_aware import LabelAware, label_aware, label_aware_smoothing
from tammes.losses.labels import MixedLabels
from tammes.losses.ldam import LDAM, ldam_margins
from tammes.losses.lm_softmax import LMSoftmax, lm_softmax
from tammes.losses.lsoftmax import LSoftmax
from tammes.losses.normface import NormFace, normface
from tammes.losses.objective import Objective, Term
from tammes.losses.regularisers import HypersphericalEnergy, SampleMargin, ZeroCentroid
from tammes.losses.scores import Scores
from tammes.losses.sphereface import SphereFace, sphereface
from tammes.losses.text import parse

__all__ = [
    "CATALOGUE",
    "LDAM",
    "AMSoftmax",
    "ArcFace",
    "CombinedMargin",
    "CosFace",
    "CrossEntropy",
    "Focal",
    "GMSoftmax",
    "HypersphericalEnergy",
    "LMSoftmax",
    "LSoftmax",
    "LabelAware",
    "MixedLabels",
    "NormFace",
    "Objective",
    "SampleMargin",
    "Scores",
    "SphereFace",
    "Term",
    "ZeroCentroid",
    "arcface",
    "combined_margin",
    "cosface",
    "effective_number_weights",
    "focal",
    "gm_softmax",
    "label_aware",
    "label_aware_smoothing",
    "ldam_margins",
    "lm_softmax",
    "normface",
    "parse",
    "sphereface",
]
