"""MHE, the hyperspherical energy of the prototypes: a regularizer to add to a loss (Liu et al. 2018)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tammes._common import checks
from tammes._common.types import Scalar
from tammes.losses._engine.plan import Need
from tammes.losses._parameters import set_field
from tammes.losses.objective import PrototypeTerm


@dataclass(frozen=True, kw_only=True)
class HypersphericalEnergy(PrototypeTerm):
    r"""Mean pairwise Riesz energy of the unit prototypes: MHE of Liu et al. 2018 (paper, eq. 2.4).

    Printed as MHE, which is another name of this class.

    .. math::
        \frac{1}{k (k-1)} \sum_{i \ne j} \|w_i - w_j\|^{-t}

    where t is `power`; t = 0 gives the logarithmic energy :math:`-\log \|w_i - w_j\|`. With several
    prototypes per class, the mean is over the pairs of different classes.
    """

    text_name: ClassVar[str] = "MHE"

    power: float = 1.0

    def __post_init__(self) -> None:
        set_field(self, "power", checks.within("MHE's power", self.power, 0.0, 100.0))

    @property
    def need(self) -> Need:
        return Need()

    def of_prototypes(self, statistics: Any) -> Scalar:
        k = statistics.num_classes
        return statistics.riesz(self.power) / (k * (k - 1))


MHE = HypersphericalEnergy
"""The name that the text form prints."""
