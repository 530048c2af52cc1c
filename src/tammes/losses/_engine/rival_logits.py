r"""From the similarities of the wrong classes to the logits that `rest` sums.

For most losses a logit is :math:`s c_{ij}`. `RivalLogits` is the general form,

.. math::
    x_{ij} = s\, a_j\, f(c_{ij}) + b_j,

with a factor and an offset per class, and an elementwise map f that may compare a similarity with a threshold
of its row. The dense reference differentiates `dense`. The streamed passes use `write`.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tammes._common.types import PerClass, PerSample, Scalar
from tammes.losses.learnable import Learnable
from tammes.losses.scores import Space

LOG2_E = math.log2(math.e)

AnyScale = float | Learnable | Literal["adaptive"]
"""A number, a parameter of the head, or what the term makes of its running statistics at every step."""


class RivalMap:
    """An elementwise map of similarities. Subclasses are frozen dataclasses without tensors.

    `threshold` broadcasts against `similarity`, and is None unless the map is `thresholded`. `parameter` is
    the running statistic that `reads_state` names, or None.
    """

    thresholded: ClassVar[bool] = False
    reads_state: ClassVar[str | None] = None

    def value(self, similarity: Tensor, threshold: Any, parameter: Any) -> Tensor:
        """The mapped similarity, differentiable; a loss may detach parts of it."""
        raise NotImplementedError

    def value_and_slope(self, similarity: Tensor, threshold: Any, parameter: Any) -> tuple[Tensor, Tensor]:
        """`value` and its derivative in new tensors, for the streamed passes."""
        raise NotImplementedError


def above(similarity: Tensor, threshold: Tensor) -> Tensor:
    """1 where the similarity exceeds the threshold, 0 elsewhere, for streamed passes.

    Comparing into numbers is vectorized by torch; comparing into booleans takes several times as long.
    """
    return torch.gt(similarity, threshold, out=torch.empty_like(similarity))


class Rest(NamedTuple):
    """Which log-sum-exp over the wrong classes."""

    space: Space
    scale: AnyScale
    map: RivalMap | None = None
    place: int | None = None  # of the term whose class values, state or own scale enter; None without any


class Written(NamedTuple):
    """Logits as `values` times `scale`, and their derivatives by the similarities."""

    values: Tensor
    scale: float | Scalar
    slope: Tensor | None  # over the scale of the loss; None for 1


@dataclass(frozen=True, eq=False)
class RivalLogits:
    """How similarities become the logits of one `rest`."""

    scale: float | Scalar
    map: RivalMap | None = None
    factor: PerClass | None = None
    offset: PerClass | None = None
    threshold: Float[Tensor, "n t"] | None = None  # one per row and label
    parameter: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether the logits are just s times the similarities."""
        return self.map is None and self.factor is None and self.offset is None

    @property
    def labels(self) -> int | None:
        """The number of labels per row, each with its own logits; None if the logits ignore the label."""
        return None if self.threshold is None else self.threshold.shape[1]

    def of_classes(self, classes: slice | Int[Tensor, " c"]) -> "RivalLogits":
        """The logits of some of the classes."""
        factor, offset = (None if table is None else table[classes] for table in (self.factor, self.offset))
        return replace(self, factor=factor, offset=offset)

    def of_rows(self, rows: slice) -> "RivalLogits":
        """The logits of some of the rows."""
        return self if self.threshold is None else replace(self, threshold=self.threshold[rows])

    def dense(self, similarity: Tensor, label: int = 0) -> Tensor:
        """Logits of whole rows of similarities, for the label in column `label`; differentiable."""
        mapped = similarity
        if self.map is not None:
            mapped = self.map.value(similarity, self._thresholds(label), self.parameter)
        return self._affine(mapped, self.factor, self.offset)

    def of_target(self, similarity: PerSample, classes: Int[Tensor, " n"], label: int) -> PerSample:
        """The logit of one class per row, as a rival of the label in column `label`; differentiable."""
        mapped = similarity
        if self.map is not None:
            threshold = None if self.threshold is None else self.threshold[:, label]
            mapped = self.map.value(similarity, threshold, self.parameter)
        factor, offset = (None if table is None else table[classes] for table in (self.factor, self.offset))
        return self._affine(mapped, factor, offset)

    def _affine(self, mapped: Tensor, factor: Tensor | None, offset: Tensor | None) -> Tensor:
        logits = self.scale * mapped if factor is None else self.scale * factor * mapped
        return logits if offset is None else logits + offset

    def write(self, similarity: Tensor, out: Tensor, label: int = 0) -> Written:
        """`dense` as values times a scale, without gradients. Values are in `out`, which may be `similarity`.

        Those of a map alone are in a new tensor, and not yet scaled: the pass that shifts them does both.
        """
        slope = self.factor
        if self.map is not None:
            similarity, slope = self.map.value_and_slope(similarity, self._thresholds(label), self.parameter)
            slope = slope if self.factor is None else slope.mul_(self.factor)
        if self.factor is not None:
            torch.mul(similarity, self.scale * self.factor, out=out)
            return Written(out if self.offset is None else out.add_(self.offset), 1.0, slope)
        if self.offset is not None:
            return Written(scaled_plus(self.offset, similarity, self.scale, out), 1.0, slope)
        return Written(similarity, self.scale, slope)

    def _thresholds(self, label: int) -> Tensor | None:
        return None if self.threshold is None else self.threshold[:, label, None]


def scaled_plus(shift: Tensor, similarity: Tensor, scale: float | Scalar, out: Tensor) -> Tensor:
    """`shift` + s `similarity` into `out`, which may be `similarity`; in one pass if s is a number."""
    if isinstance(scale, Tensor):
        return torch.mul(similarity, scale, out=out).add_(shift)
    return torch.add(shift, similarity, alpha=scale, out=out)


def exponentials(values: Tensor, scale: float | Scalar, shift: Tensor, out: Tensor) -> Tensor:
    r""":math:`e^{s v - \mathrm{shift}}` of each row into `out`, which may be `values`.

    On a CPU as powers of two: torch leaves `exp` to MKL, which takes three times as long as torch's own
    `exp2` on processors of other makers.
    """
    scaled_plus(-shift[:, None], values, scale, out)
    return out.mul_(LOG2_E).exp2_() if out.device.type == "cpu" else out.exp_()
