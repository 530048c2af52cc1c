"""R_w, the squared norm of the prototypes' mean: a regularizer to add to a loss (paper, eq. 3.7)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tammes._common import checks
from tammes._common.types import Scalar
from tammes.losses._engine.plan import Need
from tammes.losses.objective import PrototypeTerm


@dataclass(frozen=True, kw_only=True)
class ZeroCentroid(PrototypeTerm):
    r"""Squared norm of the prototypes' mean: :math:`R_w = \|\tfrac{1}{k} \sum_j w_j\|^2` (paper, eq. 3.7).

    Printed as R_w, which is another name of this class.
    Uses normalized prototypes: with raw ones (`normalize=False`), a scale-invariant loss can reduce R_w by
    merely shrinking them all (erratum 11). The paper's tables print lambda but use 100 lambda. With several
    prototypes per class, the mean is over all of them.
    """

    text_name: ClassVar[str] = "R_w"

    normalize: bool = True

    def __post_init__(self) -> None:
        checks.boolean("R_w's normalize", self.normalize)

    @property
    def need(self) -> Need:
        return Need("cosine" if self.normalize else "raw", prototype_sum=True)

    def of_prototypes(self, statistics: Any) -> Scalar:
        return statistics.centroid(self.need.space).square().sum()


R_w = ZeroCentroid
"""The name that the text form prints."""
