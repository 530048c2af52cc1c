"""Every catalogue entry against its formula written out over whole rows, class by class, in float64."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tammes.losses import (
    LDAM,
    VS,
    AdaCos,
    AdaFace,
    ArcFace,
    BalancedSoftmax,
    Circle,
    CombinedMargin,
    CosFace,
    CrossEntropy,
    CurricularFace,
    ElasticFace,
    Focal,
    GMSoftmax,
    HypersphericalEnergy,
    LabelAware,
    Learnable,
    LMSoftmax,
    LogitAdjusted,
    LSoftmax,
    MagFace,
    MVSoftmax,
    NormFace,
    SampleMargin,
    SphereFace,
    Term,
    ZeroCentroid,
)
from tammes.losses.sphereface import monotone_cosine


def psi(angle: Tensor) -> Tensor:
    """(-1)^p cos(angle) - 2 p, one angle at a time."""
    turns = [math.floor(value / math.pi) for value in angle.tolist()]
    values = [(-1) ** p * math.cos(value) - 2 * p for p, value in zip(turns, angle.tolist(), strict=True)]
    return torch.tensor(values, dtype=angle.dtype)


def moved_by_arcface(theta: Tensor, m: Tensor, beyond_pi: str = "linear", easy: bool = False) -> Tensor:
    if easy:
        return torch.where(theta < math.pi / 2, torch.cos(theta + m), torch.cos(theta))
    past_pi = {
        "linear": torch.cos(theta) - m * torch.sin(m),
        "clip": -torch.ones_like(theta),
        "plain": torch.cos(theta + m),
    }
    return torch.where(theta + m > math.pi, past_pi[beyond_pi], torch.cos(theta + m))


def written_out(term: Term, z: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """One value per row."""
    if isinstance(getattr(term, "scale", None), Learnable):  # without a head, at its starting value
        term = dataclasses.replace(term, scale=term.scale.value)
    n, k = len(y), len(w)
    norms = z.norm(dim=1)[:, None] * w.norm(dim=1)
    raw, cosines = z @ w.T, z @ w.T / norms
    own = (torch.arange(n), y)
    theta, others = cosines[own].acos(), F.one_hot(y, k) == 0

    def of(name: str) -> Tensor:
        value = torch.tensor(getattr(term, name), dtype=z.dtype)
        return value[y] if value.ndim else value.expand(n)

    def softmax_loss(similarities: Tensor, target: Tensor) -> Tensor:
        logits = getattr(term, "scale", 1.0) * similarities.index_put(own, target)
        smoothing = getattr(term, "label_smoothing", 0.0)
        return F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)

    match term:
        case CrossEntropy() | Focal():
            similarities = cosines if term.normalize else raw
            loss = softmax_loss(similarities, similarities[own])
            if isinstance(term, CrossEntropy):
                return loss
            return (1 - (term.scale * similarities).softmax(1)[own]) ** term.gamma * loss
        case LSoftmax():
            return softmax_loss(raw, norms[own] * psi(of("margin") * theta))
        case NormFace():
            return softmax_loss(cosines, cosines[own])
        case CosFace():
            return softmax_loss(cosines, cosines[own] - of("margin"))
        case ArcFace():
            moved = moved_by_arcface(theta, of("margin"), term.beyond_pi, term.easy_margin)
            return softmax_loss(cosines, moved)
        case SphereFace():
            lengths = torch.ones(n) if term.normalize_features else z.norm(dim=1)
            return softmax_loss(lengths[:, None] * cosines, lengths * psi(of("margin") * theta))
        case CombinedMargin():
            return softmax_loss(cosines, psi(of("m1") * theta + of("m2")) - of("m3"))
        case LDAM():
            roots = of("counts") ** -0.25
            largest = max(count**-0.25 for count in term.counts or ())
            return softmax_loss(cosines, cosines[own] - roots * (term.C or term.max_margin / largest))
        case LabelAware():
            counts = torch.tensor(term.counts, dtype=z.dtype)
            share = (counts - counts.min()) / (counts.max() - counts.min())
            soft = (term.tail + (term.head - term.tail) * torch.sin(share * math.pi / 2))[y][:, None]
            targets = torch.where(others, soft / (k - 1), 1 - soft)
            logits = term.scale * (cosines if term.normalize else raw)
            return F.cross_entropy(logits, targets, reduction="none")
        case BalancedSoftmax():
            logits = term.scale * (cosines if term.normalize else raw)
            weighted = torch.tensor(term.counts, dtype=z.dtype) * logits.exp()
            return -(weighted[own] / weighted.sum(1)).log()
        case LogitAdjusted() | VS():
            counts = torch.tensor(term.counts, dtype=z.dtype)
            factor = (counts / counts.max()) ** getattr(term, "gamma", 0.0)
            logits = term.scale * factor * (cosines if term.normalize else raw)
            return F.cross_entropy(logits + term.tau * (counts / counts.sum()).log(), y, reduction="none")
        case AdaFace():
            norm = z.norm(dim=1)
            mean = term.momentum * norm.mean() + (1 - term.momentum) * 20
            std = term.momentum * norm.std() + (1 - term.momentum) * 100
            quality = (term.concentration * (norm - mean) / (std + 1e-3)).clamp(-1, 1)
            angle = (theta - term.margin * quality).clamp(0, math.pi)
            return softmax_loss(cosines, angle.cos() - term.margin * (quality + 1))
        case AdaCos():
            angle = min(math.pi / 4, theta.median().item() if term.dynamic else math.inf)
            scale = math.log(k - 1) / math.cos(angle)
            return -(scale * cosines).log_softmax(1)[own]
        case MagFace():
            norm = z.norm(dim=1).clamp(term.low_norm, term.high_norm)
            share = (norm - term.low_norm) / (term.high_norm - term.low_norm)
            m = (1 - share) * term.low_margin + share * term.high_margin
            reward = norm / term.high_norm**2 + norm**-1
            return softmax_loss(cosines, moved_by_arcface(theta, m)) + term.strength * reward
        case ElasticFace():
            m = of("margin") + term.std * torch.randn(n, dtype=z.dtype)
            return softmax_loss(
                cosines, moved_by_arcface(theta, m) if term.form == "arc" else cosines[own] - m
            )
        case CurricularFace():
            t = term.momentum * cosines[own].mean()
            hard = cosines > torch.cos(theta + of("margin"))[:, None]
            weighed = torch.where(hard, cosines * (t + cosines), cosines)
            return softmax_loss(weighed, moved_by_arcface(theta, of("margin")))
        case MVSoftmax():
            m = of("margin")
            target = moved_by_arcface(theta, m) if term.form == "arc" else cosines[own] - m
            hard = (cosines > target[:, None]).to(z.dtype)
            extra = (term.t - 1) * (cosines + 1) if term.emphasis == "adaptive" else term.t
            return softmax_loss(cosines + hard * extra, target)
        case Circle():
            m, positive = term.margin, cosines[own]
            negatives = (cosines + m).clamp(min=0) * (cosines - m)
            return softmax_loss(negatives, (1 + m - positive).clamp(min=0) * (positive - 1 + m))
        case GMSoftmax():
            exponentials = (term.scale * cosines).exp()
            numerator = (term.scale * (of("alpha1") * cosines[own] + of("beta1"))).exp()
            exponentials[own] = (term.scale * (of("alpha2") * cosines[own] + of("beta2"))).exp()
            return -(numerator / exponentials.sum(1)).log()
        case LMSoftmax():
            gaps = (term.scale * (cosines - cosines[own][:, None])).exp()
            return (gaps * others).sum(1).log() / term.scale
        case SampleMargin():
            similarities = cosines if term.normalize else raw
            wrong = similarities[others].view(n, k - 1)
            return (wrong.max(1).values if term.form == "max" else wrong.mean(1)) - similarities[own]
        case ZeroCentroid():
            vectors = w / w.norm(dim=1, keepdim=True) if term.normalize else w
            return vectors.mean(0).square().sum().expand(n)
        case HypersphericalEnergy():
            distances = torch.pdist(w / w.norm(dim=1, keepdim=True))
            energies = -distances.log() if term.power == 0 else distances**-term.power
            return energies.mean().expand(n)
    raise NotImplementedError(f"write {type(term).__name__} out here")


def test_the_value_is_that_of_the_formula(row_term, new_batch):
    for seed in range(3):
        z, w, y = (x.detach() for x in new_batch(seed=seed))
        torch.manual_seed(seed)  # of random margins
        value = row_term(z, w, y, reduction="none")
        torch.manual_seed(seed)
        torch.testing.assert_close(value, written_out(row_term, z, w, y), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_the_monotone_cosine_goes_on_through_multiples_of_pi(p):
    angle = p * math.pi + torch.tensor([-0.02, -1e-6, 0.0, 1e-6, 0.02], dtype=torch.float64)
    before, after = (torch.cos(angle - q * math.pi) - 2 * q for q in (p - 1, p))
    expected = torch.where(angle < p * math.pi, before, after)
    torch.testing.assert_close(monotone_cosine(angle), expected, rtol=0, atol=1e-12)
