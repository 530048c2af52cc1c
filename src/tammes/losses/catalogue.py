"""The list of all losses and regularizers, used by the text form, the tests, the docs and the CLI."""

from tammes.losses.adacos import AdaCos
from tammes.losses.adaface import AdaFace
from tammes.losses.arcface import ArcFace
from tammes.losses.balanced_softmax import BalancedSoftmax
from tammes.losses.circle import Circle
from tammes.losses.combined import CombinedMargin
from tammes.losses.cosface import CosFace
from tammes.losses.cross_entropy import CrossEntropy
from tammes.losses.curricularface import CurricularFace
from tammes.losses.elasticface import ElasticFace
from tammes.losses.focal import Focal
from tammes.losses.gm_softmax import GMSoftmax
from tammes.losses.hyperspherical_energy import HypersphericalEnergy
from tammes.losses.label_aware import LabelAware
from tammes.losses.ldam import LDAM
from tammes.losses.lm_softmax import LMSoftmax
from tammes.losses.logit_adjusted import LogitAdjusted
from tammes.losses.lsoftmax import LSoftmax
from tammes.losses.magface import MagFace
from tammes.losses.mv_softmax import MVSoftmax
from tammes.losses.normface import NormFace
from tammes.losses.objective import Term
from tammes.losses.sample_margin import SampleMargin
from tammes.losses.sphereface import SphereFace
from tammes.losses.vector_scaling import VectorScaling
from tammes.losses.zero_centroid import ZeroCentroid

CATALOGUE: tuple[type[Term], ...] = (
    CrossEntropy,
    Focal,
    LSoftmax,
    NormFace,
    AdaCos,
    CosFace,
    ArcFace,
    SphereFace,
    CombinedMargin,
    GMSoftmax,
    LMSoftmax,
    LDAM,
    LabelAware,
    BalancedSoftmax,
    LogitAdjusted,
    VectorScaling,
    AdaFace,
    MagFace,
    ElasticFace,
    CurricularFace,
    MVSoftmax,
    Circle,
    SampleMargin,
    ZeroCentroid,
    HypersphericalEnergy,
)
"""Every loss and regularizer of the package. The text form, the tests and the docs iterate over it."""

ALIASES: dict[str, type[Term]] = {"AMSoftmax": CosFace}

TERM_NAMES: dict[str, type[Term]] = (
    {term.text_name: term for term in CATALOGUE} | {term.__name__: term for term in CATALOGUE} | ALIASES
)
"""Every name that the text form accepts: the one it prints, the class's, and common aliases.

`tammes` exports them all, and each is the same class in Python.
"""
