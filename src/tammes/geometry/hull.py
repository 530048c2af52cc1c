"""One-vs-rest margins: the distance of each prototype from the convex hull of the others."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from tammes._common import tensor_checks
from tammes._common.row_blocks import at_least_single, double
from tammes._common.types import PerClass, Prototypes
from tammes.geometry import sphere


class OneVsRest(NamedTuple):
    """The distance of each prototype from the hull of the others lies in [margin - gap, margin]."""

    margin: PerClass
    gap: PerClass


@torch.no_grad()
def one_vs_rest_margins(weight: Prototypes) -> OneVsRest:
    r"""Distance from each unit prototype to the convex hull of the others, with a certificate.

    .. math::
        \min_{\lambda \ge 0,\ \sum \lambda = 1} \Big\| w_i - \sum_{j \ne i} \lambda_j w_j \Big\|
        = \max_{\|z\| \le 1} \min_{j \ne i}\, (w_i - w_j) \cdot z

    The right-hand side is the largest sample margin that any feature of class i can have. The left-hand side
    is a small quadratic program, solved for each class by non-negative least squares (scipy); `gap` is its
    duality gap. Intended for up to a few hundred classes. A zero prototype counts as the origin.

    >>> one_vs_rest_margins(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)).margin
    tensor([1.4142, 1.4142, 1.0000], dtype=torch.float64)
    """
    tensor_checks.check_prototypes(weight)
    tensor_checks.check_finite("weight", weight)
    units = sphere.normalize(double(weight)).cpu().numpy()
    solved = [_to_origin(units[i] - np.delete(units, i, axis=0)) for i in range(len(units))]
    margin, gap = torch.tensor(solved, dtype=at_least_single(weight), device=weight.device).unbind(1)
    return OneVsRest(margin, gap)


def _to_origin(points: Float[np.ndarray, "m d"]) -> tuple[float, float]:
    """Distance from the origin to the hull of `points`, and an upper bound on its error.

    Least squares with an extra row of ones and target 1 yields a multiple of the desired weights: for weights
    s * lambda the minimum over s, r^2 / (1 + r^2), increases with the distance r of lambda.
    """
    from scipy.optimize import nnls

    system = np.vstack([points.T, np.ones(len(points))])
    weights, _ = nnls(system, np.append(np.zeros(points.shape[1]), 1.0))
    nearest = (weights / weights.sum()) @ points
    distance = float(np.linalg.norm(nearest))
    floor = float((points @ nearest).min()) / distance if distance > 0 else 0.0
    return distance, distance - max(floor, 0.0)
