"""The margin losses against pytorch-metric-learning, and against other peers' ArcFace written out."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as peers
from torch import Tensor, nn

from tammes import PrototypeHead
from tammes.losses import ArcFace, CosFace, LSoftmax, NormFace, Scores, SphereFace, Term
from tammes.losses.functional import arcface

K, D = 7, 4

# The peer's weight is (d, k); its angles are in degrees. NormalizedSoftmaxLoss divides by a temperature
# where others multiply with a scale. Its SphereFaceLoss is the original A-Softmax: it multiplies the cosines
# by the scale *and by the norm of the embedding*. Its L-Softmax does so with both norms, and scale 1 is the
# loss as published.
PAIRS: dict[str, tuple[Term, Callable[[], nn.Module]]] = {
    "NormFace": (NormFace(scale=20), lambda: peers.NormalizedSoftmaxLoss(K, D, temperature=1 / 20)),
    "CosFace": (CosFace(scale=16, margin=0.35), lambda: peers.CosFaceLoss(K, D, margin=0.35, scale=16)),
    "ArcFace": (
        ArcFace(scale=16, margin=math.radians(28.6)),
        lambda: peers.ArcFaceLoss(K, D, margin=28.6, scale=16),
    ),
    "SphereFace": (
        SphereFace(scale=2, margin=4, normalize_features=False),
        lambda: peers.SphereFaceLoss(K, D, margin=4, scale=2),
    ),
    "LSoftmax": (LSoftmax(margin=4), lambda: peers.LargeMarginSoftmaxLoss(K, D, margin=4, scale=1)),
}


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:pytorch_metric_learning", "ignore:.*classes:UserWarning"
)
def test_sub_centers_of_pytorch_metric_learning(new_batch):
    theirs = peers.SubCenterArcFaceLoss(num_classes=K, embedding_size=D, margin=28.6, scale=16, sub_centers=3)
    head = PrototypeHead(D, K, PAIRS["ArcFace"][0], centers=3, dtype=torch.float64)
    for seed in range(3):
        z, w, _ = new_batch(k=3 * K, seed=seed)
        y = torch.arange(len(z)) % K
        theirs.W = nn.Parameter(w.detach().T.clone())
        head.weight.data = w.detach().view(K, 3, D)
        value, loss = theirs(z, y), head(z, y)
        torch.testing.assert_close(loss, value)
        of_z, of_w = torch.autograd.grad(value, (z, theirs.W))
        found_z, found_w = torch.autograd.grad(loss, (z, head.weight))
        torch.testing.assert_close((found_z, found_w.flatten(0, 1)), (of_z, of_w.T))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pytorch_metric_learning")
@pytest.mark.parametrize("name", PAIRS)
def test_pytorch_metric_learning(name, new_batch):
    ours, make_theirs = PAIRS[name]
    theirs = make_theirs()
    for seed in range(3):
        z, w, y = new_batch(seed=seed)
        theirs.W = nn.Parameter(w.detach().T.clone())
        value = theirs(z, y)
        (of_z,) = torch.autograd.grad(value, z, retain_graph=True)
        (of_w,) = torch.autograd.grad(value, theirs.W)
        loss = ours(z, w, y)
        torch.testing.assert_close(loss, value)
        for mine, other in zip(torch.autograd.grad(loss, (z, w)), (of_z, of_w.T), strict=True):
            torch.testing.assert_close(mine, other)


@pytest.fixture
def cosines() -> Tensor:
    """Cosines of 50 samples whose targets go from 1 - 1e-9 to -1 + 1e-9: past pi - m, too."""
    generator = torch.Generator().manual_seed(1)
    cosines = 2 * torch.rand(50, K, generator=generator, dtype=torch.float64) - 1
    cosines[torch.arange(50), LABELS] = torch.linspace(1 - 1e-9, -1 + 1e-9, 50, dtype=torch.float64)
    return cosines.requires_grad_()


LABELS = torch.arange(50) % K
M, S = 0.5, 16.0


def with_target(cosines: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of scaled cosines in which `target` stands for that of the label."""
    return F.cross_entropy(S * cosines.scatter(1, LABELS[:, None], target[:, None]), LABELS, reduction="none")


def plain(theta: Tensor) -> Tensor:
    """insightface, fast-reid: cos(theta + m), wherever that is."""
    return torch.cos(theta + M)


def clipped(theta: Tensor) -> Tensor:
    """AdaFace, OpenSphere: the angle stops at pi (AdaFace: 1e-3 before it)."""
    return torch.cos((theta + M).clamp_max(math.pi))


def linear(theta: Tensor) -> Tensor:
    """ArcFace's first release, PML, OML: past pi - m a cosine margin of m sin m."""
    return torch.where(theta + M > math.pi, torch.cos(theta) - M * math.sin(M), torch.cos(theta + M))


def easy(theta: Tensor) -> Tensor:
    """ArcFace's first release with easy_margin: no margin for samples further than 90 degrees."""
    return torch.where(torch.cos(theta) > 0, torch.cos(theta + M), torch.cos(theta))


@pytest.mark.parametrize(
    ("peer", "options"),
    [
        (plain, {"beyond_pi": "plain"}),
        (clipped, {"beyond_pi": "clip"}),
        (linear, {"beyond_pi": "linear"}),
        (easy, {"easy_margin": True}),
    ],
)
def test_arcface_of_other_peers_written_out(cosines, peer, options):
    theta = torch.acos(cosines.gather(1, LABELS[:, None]).squeeze(1))
    theirs = with_target(cosines, peer(theta))
    ours = arcface(Scores.of(cosines, LABELS, scale=S), margin=M, **options)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(loss.sum(), cosines)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-8)


def test_straight_through_has_insightfaces_gradient(cosines):
    """insightface moves the target under no_grad: the gradient is that of a softmax at the moved cosine."""
    moved = cosines.detach().clone()
    target = moved[torch.arange(50), LABELS]
    moved[torch.arange(50), LABELS] = torch.cos(target.acos() + M)
    ours = arcface(
        Scores.of(cosines, LABELS, scale=S), margin=M, beyond_pi="plain", gradient="straight_through"
    )
    torch.testing.assert_close(ours, F.cross_entropy(S * moved, LABELS, reduction="none"))
    (gradient,) = torch.autograd.grad(ours.sum(), cosines)
    torch.testing.assert_close(gradient, S * ((S * moved).softmax(1) - F.one_hot(LABELS, K)))


def test_exact_and_straight_through_gradients_differ_as_documented():
    """d cos(theta + m) / dc = sin(theta + m) / sin(theta): 1.0 against 1.028 at c = 0.3 with m = 0.5."""
    slope = math.sin(math.acos(0.3) + 0.5) / math.sin(math.acos(0.3))
    cosines = torch.tensor([[0.3, 0.1]], dtype=torch.float64, requires_grad=True)
    scores = Scores.of(cosines, torch.tensor([0]), scale=4.0)
    of = [
        torch.autograd.grad(arcface(scores, margin=0.5, gradient=kind).sum(), cosines, retain_graph=True)[0]
        for kind in ("exact", "straight_through")
    ]
    assert (of[0][0, 0] / of[1][0, 0]).item() == pytest.approx(slope)
    assert slope == pytest.approx(1.028, abs=1e-3)
