"""The paper's lower bounds on losses, with corrected signs, and loss values at the simplex."""

import math

import torch
from torch import Tensor

from tammes._common import checks
from tammes.geometry.energy import riesz_energy
from tammes.geometry.simplices import simplex
from tammes.losses._engine.plan import Plan
from tammes.losses._engine.soft_targets import rest_without_each
from tammes.losses._engine.statistics import Rivals, Statistics
from tammes.losses._parameters import PerClassValue
from tammes.losses._text import ObjectiveLike, as_objective
from tammes.theory._weighted_value import Counts, WeightedValue, check_reduced, checked_counts


def gm_softmax_bound(
    k: int,
    *,
    scale: float,
    alpha1: PerClassValue = 1.0,
    alpha2: PerClassValue = 1.0,
    beta1: PerClassValue = 0.0,
    beta2: PerClassValue = 0.0,
    counts: Counts | None = None,
) -> float:
    r"""Minimum of the mean GM-Softmax loss for k <= d + 1: Theorems 3.2 and 3.5, with the sign corrected.

    .. math::
        \sum_y p_y \log\bigl[ e^{s (\alpha_2 - \alpha_1 + \beta_2 - \beta_1)}
            + (k - 1) e^{-s (1/(k-1) + \alpha_1 + \beta_1)} \bigr]

    The paper prints the first exponent with the opposite sign (erratum 3). With scalar parameters and no
    `counts` this is Theorem 3.2, which requires balanced classes, :math:`\alpha_2 \le \alpha_1` and
    :math:`\alpha_1` of at least `alpha1_threshold`. With per-class parameters, or class priors :math:`p_y`
    from `counts`, it is Theorem 3.5, which requires a zero centroid of the prototypes,
    :math:`\alpha_2 \le \alpha_1` and only :math:`\alpha_1 \ge -1/(k-1)`. The regular simplex, with features
    equal to their prototypes, attains both.

    >>> round(gm_softmax_bound(3, scale=2.0), 4)
    0.0949
    """
    k = checks.at_least("k", k, 2)
    scale = checks.positive("scale", scale)
    a1, a2, b1, b2 = (_per_class(value, k) for value in (alpha1, alpha2, beta1, beta2))
    own = scale * (a2 - a1 + b2 - b1)
    others = math.log(k - 1) - scale * (1 / (k - 1) + a1 + b1)
    shares = _per_class(1.0, k) if counts is None else checked_counts(counts, k)
    return (shares @ torch.logaddexp(own, others) / shares.sum()).item()


def _per_class(value: PerClassValue, k: int) -> Tensor:
    values = torch.as_tensor(value, dtype=torch.float64)
    if values.shape not in ((), (k,)):
        raise ValueError(f"A parameter must be one number or {k}, one per class, got {len(values)}.")
    return values.expand(k)


def normface_bound(k: int, *, scale: float) -> float:
    r"""Minimum mean NormFace loss of k <= d + 1 balanced classes, :math:`\log(1 + (k-1) e^{-s k/(k-1)})`.

    Also the minimum of SphereFace (Proposition 3.3), and of CE while :math:`|w_j| |z_i| \le s`. As norms grow
    it tends to 0, the infimum of Theorem 3.1, which is never attained.

    >>> round(normface_bound(10, scale=5.0), 4)
    0.0342
    """
    return gm_softmax_bound(k, scale=scale)


def cosface_bound(k: int, *, scale: float, margin: float) -> float:
    """Minimum mean CosFace loss of k <= d + 1 balanced classes (Proposition 3.3)."""
    return gm_softmax_bound(k, scale=scale, beta1=-margin, beta2=-margin)


def arcface_bound(k: int, *, scale: float, margin: float) -> float:
    r"""Minimum mean ArcFace loss of k <= d + 1 balanced classes (Proposition 3.3).

    At the simplex a margin m acts like a CosFace margin of :math:`1 - \cos m`. Valid for every m in [0, pi/2]
    if the angle is continued past pi ("linear", "clip"), and up to `largest_arcface_margin` for "plain".
    """
    return cosface_bound(k, scale=scale, margin=1 - math.cos(margin))


def lm_softmax_bound(k: int, *, scale: float) -> float:
    r"""Minimum mean LM-Softmax loss of k <= d + 1 balanced classes, :math:`\log(k-1) / s - k / (k-1)`.

    The limit of `gm_softmax_bound` / s as beta2 tends to -inf. `reduction="lse"` over n samples adds
    log(n) / s.

    >>> round(lm_softmax_bound(3, scale=10.0), 4)
    -1.4307
    """
    k = checks.at_least("k", k, 2)
    return math.log(k - 1) / checks.positive("scale", scale) - k / (k - 1)


def sample_margin_bound(k: int) -> float:
    """Minimum mean R_sm of k <= d + 1 balanced classes, -k / (k - 1) (Theorem 3.4), in either form."""
    return -checks.at_least("k", k, 2) / (k - 1)


def alpha1_threshold(k: int) -> float:
    r"""The smallest alpha1 for which Theorem 3.2 holds if alpha2 = alpha1: :math:`(k-2) / (2k-2)`.

    The paper requires 1/2. Below the threshold, coincident prototypes with every feature at the antipode have
    a smaller loss than the simplex; at the threshold they tie (erratum 4). For alpha2 < alpha1 the condition
    is sufficient but not necessary.
    """
    k = checks.at_least("k", k, 2)
    return (k - 2) / (2 * k - 2)


def largest_arcface_margin(k: int) -> float:
    """The largest margin, in radians, for which the simplex minimizes plain ArcFace.

    Its cosine is `alpha1_threshold`: from 90 degrees for k = 2 down to 60 for many classes.
    """
    return math.acos(alpha1_threshold(k))


def value_at_simplex(objective: ObjectiveLike, k: int, *, counts: Counts | None = None) -> float:
    """The value of `objective` at the regular simplex of k unit prototypes, every feature on its own.

    Computed by the losses' own functions from the cosines 1 and -1 / (k - 1), so it is cheap for any k (only
    MHE builds the simplex). `counts` weight the classes, equally by default, and are LDAM's class counts.

    >>> from tammes.losses import NormFace, ZeroCentroid
    >>> round(value_at_simplex(NormFace(scale=5.0) + 100.0 * ZeroCentroid(), 10), 4)
    0.0342
    """
    k = checks.at_least("k", k, 2)
    objective = as_objective(objective)
    check_reduced(objective)
    weights = torch.ones(k, dtype=torch.float64) if counts is None else checked_counts(counts, k)
    value = WeightedValue.of(objective, weights)
    return value(_simplex_statistics(k, value.plan)).item()


def _simplex_statistics(k: int, plan: Plan) -> Statistics:
    """The statistics of a head at the simplex; its centroid is zero, so one dimension is enough."""
    ones = torch.ones(k, 1, dtype=torch.float64)
    others = -ones.T / (k - 1)  # one row that has the cosine of a wrong class for every class
    rest = {key: rest_without_each(plan.logits_of(key).dense(others)).squeeze(0) for key in plan.rests}
    rival = Rivals(-ones[:, 0] / (k - 1), (torch.arange(k) == 0).long())
    return Statistics(
        targets=torch.arange(k)[:, None],
        num_classes=k,
        target=dict.fromkeys(plan.spaces, ones),
        rest=rest,
        rivals=dict.fromkeys(plan.spaces, rival),
        sums=dict.fromkeys(plan.sums, torch.zeros_like(ones[0])),
        rows=dict.fromkeys(plan.spaces, torch.zeros_like(ones)),
        row_norms=ones[:, 0],
        target_norms=ones,
        riesz=lambda power: riesz_energy(simplex(k, k - 1), power),
    )
