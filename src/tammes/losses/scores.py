"""`Scores`: the few numbers per sample that losses depend on; the interface between losses and heads."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tammes._common.types import Labels, PerSample, Scalar, Similarities

Space = Literal["cosine", "raw", "unit_prototypes"]
"""The similarity: cosines, raw inner products, or inner products with normalized prototypes only."""


class Smoothing(NamedTuple):
    """What label smoothing needs: sums over all classes j, weighted by the class weights v_j (default 1)."""

    own: PerSample | float  # v_{y_i}
    total: Scalar | float  # sum_j v_j
    similarity: PerSample  # sum_j v_j c_ij


class Scores(NamedTuple):
    """Everything that a loss may read about each sample: a few numbers, not a row of k logits.

    A term lists those it reads in its `need`; comments give the corresponding field of `Need`.
    """

    target: PerSample  # c_{i y_i}; always available
    rest: PerSample  # log sum_{j != y_i} exp(s c_ij); scale=s
    hardest: PerSample  # max_{j != y_i} c_ij; hardest=True
    mean: PerSample  # mean_j c_ij; mean=True
    scale: float | Scalar  # s; a tensor if it is learned or adaptive
    labels: Labels  # y_i, for margins per class
    num_classes: int  # k
    norms: (
        PerSample  # c_{i y_i} / cos(theta_{i y_i}): 1 for cosines, |z| |w| for raw inner products; norms=True
    )
    smoothing: Smoothing  # smoothing=True
    feature_norms: PerSample  # |z_i|; feature_norms=True
    noise: PerSample  # a standard normal number, drawn at every step, 0 in eval mode; noise=True
    state: Mapping[str, Tensor]  # the term's running statistics, one number each

    @classmethod
    def of(cls, cosines: Similarities, labels: Labels, *, scale: float) -> "Scores":
        """Compute scores from a full matrix of cosines.

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
            smoothing=Smoothing(1.0, float(cosines.shape[1]), cosines.sum(1)),
            feature_norms=torch.ones_like(target),
            noise=torch.zeros_like(target),
            state={},
        )


def softmax_loss(scores: Scores, logit: PerSample, label_smoothing: float | PerSample = 0.0) -> PerSample:
    r"""Cross-entropy of the logits :math:`s c_{ij}`, with the true class's replaced by `logit`.

    .. math::
        \ell_i = \operatorname{softplus}(\mathrm{rest}_i - \mathrm{logit}_i)

    `label_smoothing` e, one number or one per sample, is torch's: the target is 1 - e on the true class plus
    e / k on every class. As in torch, class weights then apply to each class of the smoothed target rather
    than to the sample, so the result already contains them: :math:`\\sum_j v_j q_{ij} (-\\log p_{ij})`.
    """
    if not torch.is_tensor(label_smoothing) and not label_smoothing:
        return torch.logaddexp(scores.rest - logit, torch.zeros_like(logit))
    own, total, similarity = scores.smoothing
    log_partition = torch.logaddexp(scores.rest, logit)
    logits = scores.scale * (similarity - own * scores.target) + own * logit  # sum_j v_j x_ij
    of_all = (total * log_partition - logits) / scores.num_classes
    return (1 - label_smoothing) * own * (log_partition - logit) + label_smoothing * of_all
