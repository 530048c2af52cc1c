"""`Scores`: the few numbers per sample on which every loss of the paper depends; the seam with heads."""

from typing import Literal, NamedTuple

import torch

from tammes.types import Labels, PerSample, Similarities

Space = Literal["cosine", "raw", "unit_prototypes"]
"""Which similarity: of unit vectors, plain inner products, or with only the prototypes normalised."""


class Scores(NamedTuple):
    """What a loss may know of each sample: four numbers, not a row of k logits."""

    target: PerSample  # c_{i y_i}
    rest: PerSample  # log sum_{j != y_i} exp(s c_ij)
    hardest: PerSample  # max_{j != y_i} c_ij
    mean: PerSample  # mean_j c_ij
    scale: float  # s
    labels: Labels  # y_i, for margins per class
    num_classes: int  # k
    norms: PerSample  # c_{i y_i} / cos(theta_{i y_i}): 1 for cosines, |z| |w| for raw inner products

    @classmethod
    def of(cls, cosines: Similarities, labels: Labels, *, scale: float) -> "Scores":
        """The plain way to make one, from a whole matrix of cosines.

        >>> Scores.of(torch.tensor([[1.0, -0.5, -0.5]]), torch.tensor([0]), scale=10.0).hardest
        tensor([-0.5000])
        """
        column = labels[:, None]
        target = cosines.gather(1, column).squeeze(1)
        masked = cosines.scatter(1, column, -torch.inf)
        return cls(
            target=target,
            rest=torch.logsumexp(scale * masked, dim=1),
            hardest=masked.max(1).values,
            mean=cosines.mean(1),
            scale=scale,
            labels=labels,
            num_classes=cosines.shape[1],
            norms=torch.ones_like(target),
        )


def softmax_loss(scores: Scores, logit: PerSample, label_smoothing: float | PerSample = 0.0) -> PerSample:
    r"""Cross-entropy of logits :math:`s c_{ij}` whose true class carries `logit` instead.

    .. math::
        \ell_i = \operatorname{softplus}(\mathrm{rest}_i - \mathrm{logit}_i)

    With `label_smoothing` e, which may be each sample's own, it is torch's: the target is 1 - e plus e / k on
    every class.
    """
    if not torch.is_tensor(label_smoothing) and not label_smoothing:
        return torch.logaddexp(scores.rest - logit, torch.zeros_like(logit))
    others = scores.scale * (scores.num_classes * scores.mean - scores.target)
    mean_logit = (others + logit) / scores.num_classes
    return torch.logaddexp(scores.rest, logit) - (1 - label_smoothing) * logit - label_smoothing * mean_logit
