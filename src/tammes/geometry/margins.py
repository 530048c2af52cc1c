"""Class margins, sample margins and what bounds them (paper, sections 2.1 and 2.2)."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tammes import checks
from tammes.geometry import sphere
from tammes.geometry.tiles import at_least_single, blocks, double
from tammes.types import Embeddings, Labels, PerClass, PerSample, Prototypes, Scalar

# Above this cosine (8 degrees) the chord decides who is nearer: cosines lose half of the digits near 1.
_CLOSE = 0.99


class Nearest(NamedTuple):
    """The nearest other prototype of every class."""

    neighbour: Int[Tensor, " k"]
    angle: PerClass


def class_margin(weight: Prototypes) -> Scalar:
    r"""The smallest angle between two prototypes, in radians (paper, eq. 2.2).

    .. math:: m_c = \min_{i \ne j} \angle(w_i, w_j)

    Exact near 0 and near pi: see `nearest_prototypes`, whose search this is. The gradient passes through
    the closest pair (the first one on ties) and is zero where its prototypes coincide. A zero prototype
    has no direction and counts as orthogonal to every other; one that is not finite gives NaN.

    >>> class_margin(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]))
    tensor(0.7854)
    """
    checks.check_prototypes(weight)
    index, chord = _search(weight.detach())
    first = chord.argmin()
    angle = _angle(double(weight[first]), double(weight[index[first]]))
    return angle.to(at_least_single(weight))


@torch.no_grad()
def nearest_prototypes(weight: Prototypes) -> Nearest:
    """For every class the nearest other prototype and the angle to it, in radians.

    Cosines in float64, tile by tile over half of the pairs, tell who is nearest; where they come close to 1
    and no longer can, the chord does. What is equal up to rounding is a tie and goes to the lowest index.
    The memory is a few tiles, whatever k is.

    >>> nearest_prototypes(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]))
    Nearest(neighbour=tensor([1, 2, 1]), angle=tensor([1.5708, 0.7854, 0.7854]))
    """
    checks.check_prototypes(weight)
    index, _ = _search(weight)
    angles = [_angle(double(weight[rows]), double(weight[index[rows]])) for rows in blocks(len(weight))]
    return Nearest(index, torch.cat(angles).to(at_least_single(weight)))


def sample_margins(
    embeddings: Embeddings, weight: Prototypes, labels: Labels, *, normalize: bool = True
) -> PerSample:
    r"""How far each sample is on the right side: its own cosine less the largest other (paper, eq. 2.5).

    .. math:: \gamma_i = \cos(z_i, w_{y_i}) - \max_{j \ne y_i} \cos(z_i, w_j)

    `normalize=False` takes raw inner products. The rival is found over blocks of classes, so memory does
    not grow with n k, forward or backward; ties go to the lowest index. Half precision is raised to
    float32. A zero embedding or prototype has cosine 0 with everything.

    >>> w = torch.eye(3)
    >>> sample_margins(torch.tensor([[3.0, 4.0, 0.0]]), w, torch.tensor([1]))
    tensor([0.2000])
    """
    k, d = checks.check_prototypes(weight)
    checks.check_embeddings(embeddings, d)
    checks.check_per_sample("labels", labels, len(embeddings))
    checks.check_labels(labels, k)
    dtype = at_least_single(embeddings, weight)
    weight, labels = weight.to(dtype), labels.long()
    return torch.cat(
        [
            _block_margins(embeddings[rows].to(dtype), weight, labels[rows], normalize)
            for rows in blocks(len(embeddings))
        ]
    )


def gamma_per_class(
    embeddings: Embeddings, weight: Prototypes, labels: Labels, *, normalize: bool = True
) -> PerClass:
    r"""The smallest sample margin of every class, :math:`\gamma_j = \min_{i: y_i = j} \gamma_i` (eq. 2.6).

    A class without samples has nothing to violate: infinity.
    """
    margins = sample_margins(embeddings, weight, labels, normalize=normalize)
    return margins.new_full((len(weight),), math.inf).scatter_reduce(0, labels.long(), margins, "amin")


def gamma_min(
    embeddings: Embeddings, weight: Prototypes, labels: Labels, *, normalize: bool = True
) -> Scalar:
    """The smallest sample margin of all; above zero when every sample is classified right."""
    return sample_margins(embeddings, weight, labels, normalize=normalize).min()


def mean_sample_margin(embeddings: Embeddings, weight: Prototypes, labels: Labels) -> Scalar:
    r"""The mean of the sample margins in cosines, :math:`m_{samp}` of the paper's tables.

    The paper prints :math:`w_{y_i}` for :math:`w_j` inside the maximum; this is with :math:`w_j`.
    """
    return sample_margins(embeddings, weight, labels).mean()


def gamma_min_ceiling(k: int, d: int) -> float:
    r"""The largest `gamma_min` that prototypes and features can have: :math:`1 - \cos \theta`.

    Theorem 2.2, corrected: the paper's proof gives the chord. :math:`\theta` is the largest class margin of
    k points in d dimensions or, where that is not known, an upper bound of it. For k <= d + 1 the value is
    k / (k - 1).
    """
    from tammes.geometry.bounds import largest_class_margin

    return 1 - math.cos(largest_class_margin(k, d).angle)


def sample_margin_ceiling(k: int, d: int, *, nonnegative: bool = False) -> float:
    r"""What `mean_sample_margin` cannot exceed when all classes have equally many samples.

    The least of three bounds, each true for every k and d:

    - :math:`k / (k - 1)`, reached for k <= d + 1 by the regular simplex. The maximum over rivals is at
      least their mean, so the mean of :math:`\gamma` is at most :math:`\tfrac{1}{k-1} \sum_j (w_j - \bar w)
      \cdot z_j`, with :math:`z_j` the mean feature of class j, and :math:`\sum_j |w_j - \bar w|^2 \le k`.
    - :math:`\sqrt{k / (k - 1)}` for `nonnegative` features (after a ReLU), reached for k <= d by orthogonal
      ones. The same sum is :math:`\tfrac{1}{k-1} \sum_j w_j \cdot (z_j - \bar z)`, and products of
      non-negative features are non-negative, so :math:`\sum_j |z_j - \bar z|^2 \le k - 1`.
    - :math:`2 \sin r`, where a cap of angular radius r is a k-th of the sphere. A class's margin is at most
      the chord to its nearest prototype; caps of half that angle are disjoint, and their area is convex in
      the chord. This is what counts for many classes in few dimensions.

    The mean may exceed `gamma_min_ceiling` for k > d + 1: in the plane two lone prototypes and five that
    coincide, on a triangle, have mean 3/7, the regular heptagon 0.3765.
    """
    checks.at_least("k", k, 2)
    checks.at_least("d", d, 1)
    simplex = k / (k - 1)
    return min(math.sqrt(simplex) if nonnegative else simplex, _cap_chord(k, d))


def hard_margin_loss(
    embeddings: Embeddings,
    weight: Prototypes,
    labels: Labels,
    gamma: float | PerClass,
    *,
    normalize: bool = True,
) -> PerClass:
    r"""The share of each class's samples whose margin is below `gamma` (empirical loss of eq. 2.7).

    .. math:: \hat L_{\gamma, j} = \tfrac{1}{n_j} \#\{i : y_i = j,\ \gamma_i < \gamma\}

    `gamma` is one number or one for each class; with `gamma_per_class` the loss is zero. NaN for a class
    without samples.
    """
    margins = sample_margins(embeddings, weight, labels, normalize=normalize)
    k = len(weight)
    threshold = torch.as_tensor(gamma, dtype=margins.dtype, device=margins.device)
    if threshold.shape not in ((), (k,)):
        raise ValueError(f"gamma must be one number or {k}, one a class, got shape {tuple(threshold.shape)}.")
    labels = labels.long()
    short = (margins < threshold.expand(k)[labels]).to(margins.dtype)
    return short.new_zeros(k).index_add(0, labels, short) / labels.bincount(minlength=k)


def centroid_norm(weight: Prototypes) -> Scalar:
    """Length of the mean of the unit prototypes; zero is what the largest margins need for k <= d + 1."""
    checks.check_prototypes(weight)
    units = sphere.normalize(weight.to(at_least_single(weight)))
    return torch.linalg.vector_norm(units.mean(0))


def norm_ratio(weight: Prototypes) -> Scalar:
    """Largest prototype norm over the smallest (paper, Fig. 1); infinite beside a zero prototype."""
    checks.check_prototypes(weight)
    norms = torch.linalg.vector_norm(weight.to(at_least_single(weight)), dim=1)
    return norms.max() / norms.min()


@torch.no_grad()
def _search(weight: Prototypes) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]:
    """Index of and chord to the nearest other unit prototype; NaN chord for a prototype not finite."""
    k = len(weight)
    index = torch.zeros(k, dtype=torch.long, device=weight.device)
    index[0] = 1
    chord = torch.full_like(double(weight[:, 0]), math.inf)
    for rows in blocks(k):
        u = sphere.normalize(double(weight[rows]))
        for columns in blocks(k, start=rows.start):
            v = u if columns == rows else sphere.normalize(double(weight[columns]))
            cosine = (u @ v.T).nan_to_num_(nan=-math.inf)
            if columns == rows:
                cosine.fill_diagonal_(-math.inf)
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
    """Write to `index` and `chord`, in place, where a row of `v` (numbered from `offset`) is nearer to `u`.

    Callers come in order of `offset`, and only what is nearer by more than rounding is written, so that a
    tie stays with the lowest index.
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
    """`_improve` for the rows `close`, whose neighbours are so near that cosines do not tell them apart."""
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
    """Twice what rounding can do to a product of two unit rows."""
    return 2 * (u.shape[1] + 8) * torch.finfo(u.dtype).eps


def _first(mask: Bool[Tensor, "a b"]) -> Int[Tensor, " a"]:
    """Column of the first true entry of each row."""
    return mask.byte().argmax(1)


def _angle(u: Float[Tensor, "*p d"], v: Float[Tensor, "*p d"]) -> Float[Tensor, "*p"]:
    """`sphere.angle`, and a right angle where one of the two is zero and has no direction."""
    blank = (u == 0).all(-1) | (v == 0).all(-1)
    u, v = (x.masked_fill(blank.unsqueeze(-1), 1.0) for x in (u, v))
    return torch.where(blank, math.pi / 2, sphere.angle(u, v))


def _block_margins(z: Embeddings, weight: Prototypes, labels: Labels, normalize: bool) -> PerSample:
    own, rival = weight[labels], weight[_rivals(z.detach(), weight.detach(), labels, normalize)]
    if normalize:
        z, own, rival = sphere.normalize(z), sphere.normalize(own), sphere.normalize(rival)
    return (z * (own - rival)).sum(-1)


def _rivals(z: Embeddings, weight: Prototypes, labels: Labels, normalize: bool) -> Labels:
    """The class other than its own that each sample is nearest to, the lowest on ties."""
    best = torch.full_like(z[:, 0], -math.inf)
    index = (labels == 0).long()
    for classes in blocks(len(weight)):
        block = sphere.normalize(weight[classes]) if normalize else weight[classes]
        with torch.autocast(z.device.type, enabled=False):
            score = z @ block.T
        inside = ((labels >= classes.start) & (labels < classes.stop)).nonzero().squeeze(1)
        score[inside, labels[inside] - classes.start] = -math.inf
        top, at = score.max(1)
        # A score that is NaN must win and stay, so that the margin is NaN too.
        better = (top > best) | top.isnan()
        best = torch.where(better, top, best)
        index = torch.where(better, at + classes.start, index)
    return index


def _cap_chord(k: int, d: int) -> float:
    """2 sin r for the cap of angular radius r that is a k-th of the sphere in d dimensions (d = 1: 2)."""
    if d == 1:
        return 2.0
    from scipy.special import betaincinv

    return 2 * math.sqrt(betaincinv((d - 1) / 2, 0.5, 2 / k))
