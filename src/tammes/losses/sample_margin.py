"""R_sm, the negative sample margin: a regularizer to add to a loss (paper, eq. 3.4 and B.2)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from tammes._common import checks
from tammes._common.types import PerSample
from tammes.losses._engine.plan import Need
from tammes.losses.objective import SampleTerm
from tammes.losses.scores import Scores


def negative_sample_margin(scores: Scores) -> PerSample:
    r"""Negative sample margin: :math:`R_{sm} = \max_{j \ne y_i} c_{ij} - c_{i y_i}` (paper, eq. 3.4).

    >>> from torch import tensor
    >>> negative_sample_margin(Scores.of(tensor([[0.75, -0.5, 0.25]]), tensor([0]), scale=1.0))
    tensor([-0.5000])
    """
    return scores.hardest - scores.target


def negative_mean_sample_margin(scores: Scores) -> PerSample:
    r"""Negative sample margin against the mean of the other classes instead of their maximum (eq. B.2).

    .. math::
        \frac{1}{k-1} \sum_{j \ne y_i} c_{ij} - c_{i y_i} = \frac{k\,\mathrm{mean}_i - t_i}{k-1} - t_i

    Never above `negative_sample_margin`; the paper prints the opposite inequality. Degenerate for k >= 4:
    prototypes {a, a, -a, -a} tie with the simplex (erratum 5).
    """
    k = scores.num_classes
    return (k * scores.mean - scores.target) / (k - 1) - scores.target


@dataclass(frozen=True, kw_only=True)
class SampleMargin(SampleTerm):
    """The sample-margin regularizer R_sm of the paper, minus the sample margin: add `0.5 * SampleMargin()`.

    Formula: `tammes.losses.functional.negative_sample_margin`, with `form="mean"`
    `tammes.losses.functional.negative_mean_sample_margin`.

    Printed as R_sm, which is another name of this class.
    Computed from cosines even when added to CE; `normalize=False` takes raw inner products.
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
        return negative_sample_margin(scores) if self.form == "max" else negative_mean_sample_margin(scores)


R_sm = SampleMargin
"""The name that the text form prints."""
