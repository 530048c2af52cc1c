"""Sample margin, zero centroid and hyperspherical energy: what is added to a loss."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tammes import checks
from tammes.losses.objective import PrototypeTerm, SampleTerm, set_field
from tammes.losses.scores import Scores
from tammes.losses.statistics import Need
from tammes.types import PerSample, Scalar


def sample_margin(scores: Scores) -> PerSample:
    r"""Minus the sample margin: :math:`R_{sm} = \max_{j \ne y_i} c_{ij} - c_{i y_i}` (paper, eq. 3.4).

    >>> from torch import tensor
    >>> sample_margin(Scores.of(tensor([[0.75, -0.5, 0.25]]), tensor([0]), scale=1.0))
    tensor([-0.5000])
    """
    return scores.hardest - scores.target


def mean_sample_margin(scores: Scores) -> PerSample:
    r"""The mean over the other classes in place of their maximum (appendix, eq. B.2).

    .. math::
        \frac{1}{k-1} \sum_{j \ne y_i} c_{ij} - c_{i y_i} = \frac{k\,\mathrm{mean}_i - t_i}{k-1} - t_i

    Never above `sample_margin` (printed the other way round). Degenerate for k >= 4: prototypes
    {a, a, -a, -a} tie the simplex (erratum 5).
    """
    k = scores.num_classes
    return (k * scores.mean - scores.target) / (k - 1) - scores.target


@dataclass(frozen=True, kw_only=True)
class SampleMargin(SampleTerm):
    """`sample_margin`, or with `form="mean"` `mean_sample_margin`, as a term: R_sm of the paper.

    Always of cosines, also beside CE; `normalize=False` takes raw inner products.
    """

    text_name: ClassVar[str] = "R_sm"
    is_loss: ClassVar[bool] = False

    form: Literal["max", "mean"] = "max"
    normalize: bool = True

    def __post_init__(self) -> None:
        checks.one_of("R_sm's form", self.form, ("max", "mean"))
        checks.boolean("R_sm's normalize", self.normalize)

    @property
    def need(self) -> Need:
        space = "cosine" if self.normalize else "raw"
        return Need(space, hardest=self.form == "max", mean=self.form == "mean")

    def per_sample(self, scores: Scores, **own: PerSample) -> PerSample:
        return sample_margin(scores) if self.form == "max" else mean_sample_margin(scores)


@dataclass(frozen=True, kw_only=True)
class ZeroCentroid(PrototypeTerm):
    r"""Squared norm of the prototypes' mean: :math:`R_w = \|\tfrac{1}{k} \sum_j w_j\|^2` (paper, eq. 3.7).

    Of the normalised prototypes: on raw ones a scale-invariant loss meets it by shrinking them all
    (erratum 11); `normalize=False` does that. The paper's tables print lambda and use 100 lambda.
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


@dataclass(frozen=True, kw_only=True)
class HypersphericalEnergy(PrototypeTerm):
    r"""Mean Riesz energy of the unit prototypes' pairs: MHE of Liu et al. 2018 (paper, eq. 2.4).

    .. math::
        \frac{1}{k (k-1)} \sum_{i \ne j} \|w_i - w_j\|^{-t}

    with t the `power`; at t = 0 the logarithmic energy :math:`-\log \|w_i - w_j\|`.
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
