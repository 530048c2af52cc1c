"""The one list of losses and regularisers; the text form, the tests, the docs and the cli walk it."""

from tammes.losses.arcface import ArcFace
from tammes.losses.combined import CombinedMargin
from tammes.losses.cosface import CosFace
from tammes.losses.cross_entropy import CrossEntropy
from tammes.losses.focal import Focal
from tammes.losses.gm_softmax import GMSoftmax
from tammes.losses.label_aware import LabelAware
from tammes.losses.ldam import LDAM
from tammes.losses.lm_softmax import LMSoftmax
from tammes.losses.lsoftmax import LSoftmax
from tammes.losses.normface import NormFace
from tammes.losses.objective import Term
from tammes.losses.regularisers import HypersphericalEnergy, SampleMargin, ZeroCentroid
from tammes.losses.sphereface import SphereFace

CATALOGUE: tuple[type[Term], ...] = (
    CrossEntropy,
    Focal,
    LSoftmax,
    NormFace,
    CosFace,
    ArcFace,
    SphereFace,
    CombinedMargin,
    GMSoftmax,
    LMSoftmax,
    LDAM,
    LabelAware,
    SampleMargin,
    ZeroCentroid,
    HypersphericalEnergy,
)

ALIASES: dict[str, type[Term]] = {"AMSoftmax": CosFace}

NAMES: dict[str, type[Term]] = (
    {term.text_name: term for term in CATALOGUE} | {term.__name__: term for term in CATALOGUE} | ALIASES
)
"""Every name the text form understands: the paper's, the class's, and other names in use."""
