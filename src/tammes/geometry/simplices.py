"""Optimal packings in closed form: the regular simplex, the orthoplex, the regular polygon."""

import math

import torch

from tammes._common import checks
from tammes._common.types import Prototypes


def simplex(
    k: int, d: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
) -> Prototypes:
    r"""The vertices of a regular simplex on the unit sphere: k unit vectors in d dimensions, k <= d + 1.

    .. math:: w_i \cdot w_j = -\frac{1}{k - 1}, \quad i \ne j

    No k unit vectors have a larger class margin or, with any features, a larger `gamma_min` (paper, Lemma
    2.1 and Proposition 2.3). Column j is :math:`r_j` in row j and :math:`-r_j / (k - 1 - j)` in the rows
    below, where :math:`r_j^2 = k (k - 1 - j) / ((k - 1)(k - j))`. Columns from k - 1 on are zero.

    >>> simplex(3, 2)
    tensor([[ 1.0000,  0.0000],
            [-0.5000,  0.8660],
            [-0.5000, -0.8660]], dtype=torch.float64)
    """
    k = checks.at_least("k", k, 2)
    d = checks.at_least("d", d, 1)
    if k > d + 1:
        raise ValueError(
            f"A regular simplex requires 2 <= k <= d + 1, got k={k}, d={d}. "
            "For more classes use `geometry.pack(k, d)`."
        )
    below = torch.arange(k - 1, 0, -1, dtype=torch.float64)
    radius = (k * below / ((k - 1) * (below + 1))).sqrt()
    points = torch.zeros(k, d, dtype=torch.float64)
    points[:, : k - 1] = (-radius / below).expand(k, -1).tril(-1)
    points.diagonal()[: k - 1] = radius
    return points.to(device=device, dtype=dtype)


def orthoplex(
    k: int, d: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
) -> Prototypes:
    """The d unit axes and k - d of their negatives: optimal for d + 2 <= k <= 2 d, with 90 degrees.

    >>> orthoplex(4, 2)
    tensor([[ 1.,  0.],
            [ 0.,  1.],
            [-1.,  0.],
            [ 0., -1.]], dtype=torch.float64)
    """
    k = checks.at_least("k", k, 2)
    d = checks.at_least("d", d, 2)
    if not d + 2 <= k <= 2 * d:
        raise ValueError(
            f"The orthoplex is an optimal packing for d + 2 <= k <= 2 d, got k={k}, d={d}. "
            "Use `geometry.simplex(k, d)` for fewer classes, `geometry.pack(k, d)` for more."
        )
    axes = torch.eye(d, dtype=torch.float64)
    return torch.cat([axes, 0 - axes[: k - d]]).to(device=device, dtype=dtype)


def polygon(
    k: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
) -> Prototypes:
    """The vertices of the regular k-gon on the unit circle, the optimal packing in two dimensions.

    >>> polygon(4).round().abs()
    tensor([[1., 0.],
            [0., 1.],
            [1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    k = checks.at_least("k", k, 2)
    turn = torch.arange(k, dtype=torch.float64) * (2 * math.pi / k)
    return torch.stack([turn.cos(), turn.sin()], dim=1).to(device=device, dtype=dtype)
