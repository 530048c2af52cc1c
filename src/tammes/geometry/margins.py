"""Class margins, sample margins and their upper bounds (paper, sections 2.1 and 2.2)."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tammes._common import checks, tensor_checks
from tammes._common.row_blocks import at_least_single, double, row_slices, same_class
from tammes._common.types import ClassPrototypes, Embeddings, Labels, PerClass, PerSample, Prototypes, Scalar
from tammes.geometry import sphere

# Above this cosine (8 degrees) compare chords: near 1 cosines lose half of their digits.
_CLOSE = 0.99


class Nearest(NamedTuple):
    """For each class, the nearest other prototype and the angle to it in radians."""

    neighbor: Int[Tensor, " k"]
    angle: PerClass


def class_margin(weight: ClassPrototypes) -> Scalar:
    r"""The smallest angle between any two prototypes, in radians (paper, eq. 2.2).

    .. math:: m_c = \min_{i \ne j} \angle(w_i, w_j)

    Accurate near 0 and near pi, like `nearest_prototypes`. The gradient flows through the closest pair (the
    first one on ties) and is zero if that pair coincides. A zero prototype has no direction and counts as
    orthogonal to all others; a non-finite one gives NaN. With several prototypes per class, (k, c, d), only
    those of different classes are compared.

    >>> class_margin(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]))
    tensor(0.7854)
    """
    _, centers, d = tensor_checks.check_class_prototypes(weight)
    rows = weight.reshape(-1, d)
    index, chord = _search(rows.detach(), centers)
    first = chord.argmin()
    angle = _angle(double(rows[first]), double(rows[index[first]]))
    return angle.to(at_least_single(weight))


@torch.no_grad()
def nearest_prototypes(weight: ClassPrototypes) -> Nearest:
    """For each class, the nearest other prototype and the angle to it, in radians.

    Compares float64 cosines, in tiles over half of the pairs, and chords where cosines are too close to 1 to
    tell. Distances equal up to rounding are ties, which go to the lowest index. Memory is a few tiles for any
    k. With several prototypes per class, (k, c, d), the nearest class is that of the closest pair.

    >>> nearest_prototypes(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]))
    Nearest(neighbor=tensor([1, 2, 1]), angle=tensor([1.5708, 0.7854, 0.7854]))
    """
    _, centers, d = tensor_checks.check_class_prototypes(weight)
    rows = weight.reshape(-1, d)
    index, chord = _search(rows, centers)
    closest = chord.view(-1, centers).argmin(1) + torch.arange(0, len(rows), centers, device=weight.device)
    other = index[closest]
    angles = [
        _angle(double(rows[closest[some]]), double(rows[other[some]])) for some in row_slices(len(weight))
    ]
    neighbor = other.div(centers, rounding_mode="floor")
    return Nearest(neighbor, torch.cat(angles).to(at_least_single(weight)))


def sample_margins(
    embeddings: Embeddings, weight: ClassPrototypes, labels: Labels, *, normalize: bool = True
) -> PerSample:
    r"""Sample margins: cosine with the true class prototype minus the largest other cosine (paper, eq. 2.5).

    .. math:: \gamma_i = \cos(z_i, w_{y_i}) - \max_{j \ne y_i} \cos(z_i, w_j)

    `normalize=False` uses raw inner products. The hardest class is found block by block, so memory does not
    grow with n k, forward or backward; ties go to the lowest index. Half precision is computed in float32. A
    zero embedding or prototype has cosine 0 with everything. With several prototypes per class, (k, c, d),
    the most similar one represents the class.

    >>> w = torch.eye(3)
    >>> sample_margins(torch.tensor([[3.0, 4.0, 0.0]]), w, torch.tensor([1]))
    tensor([0.2000])
    """
    k, centers, d = tensor_checks.check_class_prototypes(weight)
    tensor_checks.check_embeddings(embeddings, d)
    tensor_checks.check_per_sample("labels", labels, len(embeddings))
    tensor_checks.check_labels(labels, k)
    dtype = at_least_single(embeddings, weight)
    weight, labels = weight.reshape(-1, d).to(dtype), labels.long()
    return torch.cat(
        [
            _block_margins(embeddings[rows].to(dtype), weight, labels[rows], normalize, centers)
            for rows in row_slices(len(embeddings))
        ]
    )


def gamma_per_class(
    embeddings: Embeddings, weight: ClassPrototypes, labels: Labels, *, normalize: bool = True
) -> PerClass:
    r"""The smallest sample margin of each class, :math:`\gamma_j = \min_{i: y_i = j} \gamma_i` (eq. 2.6).

    Infinite for classes without samples.
    """
    margins = sample_margins(embeddings, weight, labels, normalize=normalize)
    return margins.new_full((len(weight),), math.inf).scatter_reduce(0, labels.long(), margins, "amin")


def gamma_min(
    embeddings: Embeddings, weight: ClassPrototypes, labels: Labels, *, normalize: bool = True
) -> Scalar:
    """The smallest sample margin; if positive, every sample is classified correctly."""
    return sample_margins(embeddings, weight, labels, normalize=normalize).min()


def mean_sample_margin(embeddings: Embeddings, weight: ClassPrototypes, labels: Labels) -> Scalar:
    r"""The mean of the sample margins in cosines, :math:`m_{samp}` of the paper's tables.

    The paper prints :math:`w_{y_i}` instead of :math:`w_j` inside the maximum; this uses :math:`w_j`.
    """
    return sample_margins(embeddings, weight, labels).mean()


def gamma_min_ceiling(k: int, d: int) -> float:
    r"""The largest possible `gamma_min`, :math:`1 - \cos \theta`.

    Theorem 2.2, corrected: the paper's proof gives the chord. :math:`\theta` is the largest class margin of
    k points in d dimensions or, if unknown, an upper bound on it. For k <= d + 1 the value is k / (k - 1).
    """
    from tammes.geometry.bounds import largest_class_margin

    return 1 - math.cos(largest_class_margin(k, d).angle)


def sample_margin_ceiling(k: int, d: int, *, nonnegative: bool = False) -> float:
    r"""Upper bound on `mean_sample_margin` for balanced classes.

    The smallest of three bounds, each valid for every k and d:

    - :math:`k / (k - 1)`, reached for k <= d + 1 by the regular simplex. The maximum over rivals is at
      least their mean, so the mean of :math:`\gamma` is at most :math:`\tfrac{1}{k-1} \sum_j (w_j - \bar w)
      \cdot z_j`, with :math:`z_j` the mean feature of class j, and :math:`\sum_j |w_j - \bar w|^2 \le k`.
    - :math:`\sqrt{k / (k - 1)}` for `nonnegative` features (after a ReLU), reached for k <= d by orthogonal
      ones. The same sum is :math:`\tfrac{1}{k-1} \sum_j w_j \cdot (z_j - \bar z)`, and products of
      non-negative features are non-negative, so :math:`\sum_j |z_j - \bar z|^2 \le k - 1`.
    - :math:`2 \sin r`, where a cap of angular radius r covers 1/k of the sphere. A class's margin is at most
      the chord to its nearest prototype; caps of half that angle are disjoint, and their area is convex in
      the chord. This is the smallest bound for many classes in few dimensions.

    The mean may exceed `gamma_min_ceiling` for k > d + 1: in the plane, seven prototypes on the vertices of a
    triangle, five of them coincident, have mean 3/7, whereas the regular heptagon has 0.3765.

    Several prototypes per class do not raise the bound: a sample's margin is at most that against one
    prototype of each rival, so each choice of one prototype per class is bounded, and so is their average.
    """
    k = checks.at_least("k", k, 2)
    d = checks.at_least("d", d, 1)
    simplex = k / (k - 1)
    return min(math.sqrt(simplex) if nonnegative else simplex, _cap_chord(k, d))


def hard_margin_loss(
    embeddings: Embeddings,
    weight: ClassPrototypes,
    labels: Labels,
    gamma: float | PerClass,
    *,
    normalize: bool = True,
) -> PerClass:
    r"""The fraction of each class's samples with a margin below `gamma` (empirical loss of eq. 2.7).

    .. math:: \hat L_{\gamma, j} = \tfrac{1}{n_j} \#\{i : y_i = j,\ \gamma_i < \gamma\}

    `gamma` is one number or one per class; for `gamma_per_class` the loss is zero. NaN for classes without
    samples.
    """
    margins = sample_margins(embeddings, weight, labels, normalize=normalize)
    k = len(weight)
    threshold = torch.as_tensor(gamma, dtype=margins.dtype, device=margins.device)
    if threshold.shape not in ((), (k,)):
        raise ValueError(
            f"gamma must be one number or {k}, one per class, got shape {tuple(threshold.shape)}."
        )
    labels = labels.long()
    short = (margins < threshold.expand(k)[labels]).to(margins.dtype)
    return short.new_zeros(k).index_add(0, labels, short) / labels.bincount(minlength=k)


def centroid_norm(weight: Prototypes) -> Scalar:
    """Norm of the mean of the unit prototypes; zero at the largest margins for k <= d + 1."""
    tensor_checks.check_prototypes(weight)
    units = sphere.normalize(weight.to(at_least_single(weight)))
    return torch.linalg.vector_norm(units.mean(0))


def norm_ratio(weight: Prototypes) -> Scalar:
    """Ratio of the largest to the smallest prototype norm (paper, Fig. 1); infinite if one is zero."""
    tensor_checks.check_prototypes(weight)
    norms = torch.linalg.vector_norm(weight.to(at_least_single(weight)), dim=1)
    return norms.max() / norms.min()


@torch.no_grad()
def _search(weight: Prototypes, centers: int) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]:
    """Index of the nearest unit prototype of another class and the chord to it; NaN for a non-finite one.

    Each class has `centers` adjacent rows.
    """
    k = len(weight)
    index = torch.zeros(k, dtype=torch.long, device=weight.device)
    index[:centers] = centers
    chord = torch.full_like(double(weight[:, 0]), math.inf)
    for rows in row_slices(k):
        u = sphere.normalize(double(weight[rows]))
        for columns in row_slices(k, start=rows.start):
            v = u if columns == rows else sphere.normalize(double(weight[columns]))
            cosine = (u @ v.T).nan_to_num_(nan=-math.inf)
            same = same_class(rows, columns, centers, like=u)
            if same is not None:
                cosine.masked_fill_(same, -math.inf)
            _improve(index[rows], chord[rows], u, v, cosine, columns.start)
            if columns != rows:
                _improve(index[columns], chord[columns], v, u, cosine.T, rows.start)
    return index, chord.where(chord < math.inf, math.nan)


def _improve(
    index: Int[Tensor, " a"],
    chord: Float[Tensor, " a"],
    u: Float[Tensor, "a d"],
    v: Float[Tensor, "b d"],
    cosine: Float[Tensor, "a b"],
    offset: int,
) -> None:
    """Update `index` and `chord` in place where a row of `v` (numbered from `offset`) is nearer to `u`.

    Calls come in order of `offset`, and a row must be nearer by more than rounding error, so ties stay with
    the lowest index.
    """
    slack = _cosine_slack(u)
    top = cosine.amax(1)
    reached = 1 - chord.square() / 2
    wide = ((top <= _CLOSE) & (top > reached + slack)).nonzero().squeeze(1)
    chord[wide] = (2 - 2 * top[wide]).sqrt()
    index[wide] = _first(cosine[wide] >= top[wide, None] - slack) + offset
    close = ((top > _CLOSE) & (top >= reached - slack)).nonzero().squeeze(1)
    if len(close):
        _improve_by_chord(index, chord, u, v, cosine, offset, close)


def _improve_by_chord(
    index: Int[Tensor, " a"],
    chord: Float[Tensor, " a"],
    u: Float[Tensor, "a d"],
    v: Float[Tensor, "b d"],
    cosine: Float[Tensor, "a b"],
    offset: int,
    close: Int[Tensor, " c"],
) -> None:
    """`_improve` for the rows `close`, whose neighbors are too near to compare by cosines."""
    slack = 16 * torch.finfo(u.dtype).eps
    cosine = cosine[close]
    columns = (cosine >= cosine.amax(1, keepdim=True) - _cosine_slack(u)).any(0).nonzero().squeeze(1)
    apart = torch.cdist(u[close], v[columns], compute_mode="donot_use_mm_for_euclid_dist")
    apart.masked_fill_(cosine[:, columns] == -math.inf, math.inf)
    shortest = apart.amin(1)
    first = columns[_first(apart <= shortest[:, None] + slack)]
    nearer = shortest < chord[close] - slack
    chord[close[nearer]] = shortest[nearer]
    index[close[nearer]] = first[nearer] + offset


def _cosine_slack(u: Float[Tensor, "a d"]) -> float:
    """Twice the rounding error of the inner product of two unit rows."""
    return 2 * (u.shape[1] + 8) * torch.finfo(u.dtype).eps


def _first(mask: Bool[Tensor, "a b"]) -> Int[Tensor, " a"]:
    """Column of the first true entry of each row."""
    return mask.byte().argmax(1)


def _angle(u: Float[Tensor, "*p d"], v: Float[Tensor, "*p d"]) -> Float[Tensor, "*p"]:
    """`sphere.angle`, or a right angle if either vector is zero and has no direction."""
    blank = (u == 0).all(-1) | (v == 0).all(-1)
    u, v = (x.masked_fill(blank.unsqueeze(-1), 1.0) for x in (u, v))
    return torch.where(blank, math.pi / 2, sphere.angle(u, v))


def _block_margins(
    z: Embeddings, weight: Prototypes, labels: Labels, normalize: bool, centers: int
) -> PerSample:
    search = z.detach(), weight.detach(), labels, normalize, centers
    own, rival = weight[_own(*search)], weight[_rivals(*search)]
    if normalize:
        z, own, rival = sphere.normalize(z), sphere.normalize(own), sphere.normalize(rival)
    return (z * (own - rival)).sum(-1)


def _own(z: Embeddings, weight: Prototypes, labels: Labels, normalize: bool, centers: int) -> Labels:
    """The row of `weight` that represents the true class of each sample, the first one on ties."""
    if centers == 1:
        return labels
    own = weight.view(-1, centers, weight.shape[1])[labels]
    own = sphere.normalize(own) if normalize else own
    return labels * centers + (own * z[:, None]).sum(-1).argmax(1)


def _rivals(z: Embeddings, weight: Prototypes, labels: Labels, normalize: bool, centers: int) -> Labels:
    """The row of `weight` of the nearest other class of each sample, the lowest one on ties."""
    best = torch.full_like(z[:, 0], -math.inf)
    index = centers * (labels == 0).long()
    for classes in row_slices(len(weight)):
        block = sphere.normalize(weight[classes]) if normalize else weight[classes]
        with torch.autocast(z.device.type, enabled=False):
            score = z @ block.T
        for own in (labels * centers + center for center in range(centers)):
            inside = ((own >= classes.start) & (own < classes.stop)).nonzero().squeeze(1)
            score[inside, own[inside] - classes.start] = -math.inf
        top, at = score.max(1)
        # NaN scores must win, so that the margin is NaN too.
        better = (top > best) | top.isnan()
        best = torch.where(better, top, best)
        index = torch.where(better, at + classes.start, index)
    return index


def _cap_chord(k: int, d: int) -> float:
    """2 sin r for a cap of angular radius r that covers 1/k of the sphere in d dimensions (d = 1: 2)."""
    if d == 1:
        return 2.0
    from scipy.special import betaincinv

    return 2 * math.sqrt(betaincinv((d - 1) / 2, 0.5, 2 / k))
