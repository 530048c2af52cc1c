"""One harness for every loss: examples of each catalogue entry, batches, and ways to compute them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tammes.geometry.sphere import normalize
from tammes.heads._stream.blocks import Options
from tammes.heads._stream.row_chunks import statistics_and_loss
from tammes.heads._stream.streamed import streamed
from tammes.heads._stream.workspace import Workspace
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
    MixedLabels,
    MVSoftmax,
    NormFace,
    Objective,
    SampleMargin,
    SphereFace,
    Term,
    ZeroCentroid,
)
from tammes.losses._engine.batch_loss import Producer, class_value_tensors, loss_of_batch
from tammes.losses._engine.dense_statistics import dense
from tammes.losses._engine.plan import Plan
from tammes.losses._engine.statistics import Statistics
from tammes.losses.objective import PrototypeTerm, SampleTerm


def make_examples(k: int) -> dict[str, Term]:
    """Every catalogue entry with every option, the values per class for k classes."""

    def spread(low: float, high: float) -> tuple[float, ...]:
        return tuple(low + (high - low) * j / (k - 1) for j in range(k))

    return {
        "CE": CrossEntropy(),
        "CE smooth": CrossEntropy(label_smoothing=0.1),
        "CE cosine": CrossEntropy(normalize=True, scale=12),
        "Focal": Focal(gamma=2),
        "Focal fractional smooth": Focal(gamma=0.5, label_smoothing=0.2),
        "Focal cosine": Focal(gamma=0.5, normalize=True, scale=12),
        "LSoftmax": LSoftmax(margin=4),
        "LSoftmax real smooth": LSoftmax(margin=1.7, label_smoothing=0.1),
        "LSoftmax per class": LSoftmax(margin=spread(1, 3)),
        "NormFace": NormFace(scale=12),
        "NormFace smooth": NormFace(scale=12, label_smoothing=0.1),
        "NormFace learned": NormFace(scale=Learnable(12)),
        "AdaCos": AdaCos(),
        "AdaCos fixed": AdaCos(dynamic=False),
        "CosFace": CosFace(scale=12, margin=0.35),
        "CosFace learned smooth": CosFace(scale=Learnable(12), margin=0.35, label_smoothing=0.1),
        "CosFace per class smooth": CosFace(scale=12, margin=spread(0, 0.5), label_smoothing=0.1),
        "ArcFace linear": ArcFace(scale=12, margin=0.5),
        "ArcFace linear per class": ArcFace(scale=12, margin=spread(0.1, 1.2)),
        "ArcFace clip": ArcFace(scale=12, margin=0.5, beyond_pi="clip"),
        "ArcFace clip per class smooth": ArcFace(
            scale=12, margin=spread(0.1, 1.2), beyond_pi="clip", label_smoothing=0.1
        ),
        "ArcFace plain": ArcFace(scale=12, margin=0.5, beyond_pi="plain"),
        "ArcFace easy": ArcFace(scale=12, margin=0.5, easy_margin=True),
        "ArcFace straight through": ArcFace(
            scale=12, margin=0.5, beyond_pi="plain", gradient="straight_through"
        ),
        "SphereFace": SphereFace(scale=12, margin=4),
        "SphereFace real": SphereFace(scale=12, margin=1.35),
        "SphereFace norms": SphereFace(scale=2, margin=4, normalize_features=False),
        "SphereFace norms per class smooth": SphereFace(
            scale=2, margin=spread(1, 3), normalize_features=False, label_smoothing=0.1
        ),
        "CombinedMargin": CombinedMargin(scale=12, m1=1.2, m2=0.3, m3=0.1),
        "CombinedMargin per class smooth": CombinedMargin(
            scale=12, m1=spread(1, 2), m2=spread(0.4, 0.1), m3=spread(0, 0.3), label_smoothing=0.1
        ),
        "GMSoftmax": GMSoftmax(scale=12, alpha1=1.2, alpha2=0.7, beta1=-0.2, beta2=0.1),
        "GMSoftmax rising": GMSoftmax(scale=12, alpha1=0.6, alpha2=1.4),
        "GMSoftmax per class": GMSoftmax(
            scale=12, alpha1=spread(1, 2), alpha2=spread(1, 0.5), beta1=spread(-0.2, 0), beta2=spread(0, 0.2)
        ),
        "LMSoftmax mean": LMSoftmax(scale=12),
        "LMSoftmax lse": LMSoftmax(scale=12, reduction="lse"),
        "LMSoftmax none": LMSoftmax(scale=12, reduction="none"),
        "LMSoftmax lse learned": LMSoftmax(scale=Learnable(12), reduction="lse"),
        "LDAM": LDAM(scale=12, counts=spread(500, 3)),
        "LDAM by C smooth": LDAM(scale=12, counts=spread(500, 3), C=0.9, label_smoothing=0.1),
        "LAS": LabelAware(counts=spread(500, 3)),
        "LAS cosine": LabelAware(counts=spread(3, 90), head=0.4, tail=0.1, normalize=True, scale=12),
        "BalancedSoftmax": BalancedSoftmax(counts=spread(500, 3)),
        "BalancedSoftmax cosine": BalancedSoftmax(counts=spread(3, 90), normalize=True, scale=12),
        "LogitAdjusted": LogitAdjusted(tau=1.3, counts=spread(500, 3)),
        "LogitAdjusted cosine": LogitAdjusted(counts=spread(3, 90), normalize=True, scale=12),
        "VS": VS(gamma=0.4, tau=0.7, counts=spread(500, 3)),
        "VS cosine": VS(counts=spread(3, 90), normalize=True, scale=12),
        "VS learned": VS(counts=spread(3, 90), normalize=True, scale=Learnable(12)),
        "AdaFace": AdaFace(scale=12, margin=0.4, momentum=0.9),
        "MagFace": MagFace(
            scale=12, low_norm=0.5, high_norm=3, low_margin=0.1, high_margin=0.6, strength=0.7
        ),
        "ElasticFace": ElasticFace(scale=12, margin=0.4, std=0.1),
        "ElasticFace cos per class": ElasticFace(scale=12, margin=spread(0.1, 0.4), std=0.1, form="cos"),
        "CurricularFace": CurricularFace(scale=12, margin=0.4, momentum=0.5),
        "CurricularFace per class": CurricularFace(scale=12, margin=spread(0.1, 0.6), momentum=0),
        "MVSoftmax": MVSoftmax(scale=12, margin=0.35, t=1.2),
        "MVSoftmax learned": MVSoftmax(scale=Learnable(12), margin=0.35, t=1.2),
        "MVSoftmax arc per class": MVSoftmax(
            scale=12, margin=spread(0.1, 0.6), t=0.3, form="arc", emphasis="fixed"
        ),
        "Circle": Circle(scale=12, margin=0.25),
        "R_sm": SampleMargin(),
        "R_sm mean": SampleMargin(form="mean"),
        "R_sm raw": SampleMargin(normalize=False),
        "R_sm mean raw": SampleMargin(form="mean", normalize=False),
        "R_w": ZeroCentroid(),
        "R_w raw": ZeroCentroid(normalize=False),
        "MHE": HypersphericalEnergy(),
        "MHE logarithmic": HypersphericalEnergy(power=0),
    }


def make_sums(k: int) -> dict[str, Objective]:
    """Sums that mix raw inner products, cosines, unit prototypes and several scales."""
    e = make_examples(k)
    return {
        "two scales": NormFace(scale=4) + 0.5 * CosFace(scale=32, margin=0.2) + 0.5 * e["R_sm"],
        "raw and cosine": e["CE"] + 0.5 * e["R_sm"] + 10 * e["R_w"] + e["LMSoftmax mean"],
        "raw with cosine prototypes only": e["CE smooth"] + 10 * e["R_w"],
        "raw without gradient": e["R_sm raw"] - 0.1 * e["R_w raw"] + e["R_w"] + e["R_sm mean"],
        "unit prototypes": e["SphereFace norms"] + e["NormFace smooth"] + e["R_sm"] + e["R_w"],
        "logits of every form": (
            e["VS"] + e["BalancedSoftmax cosine"] + e["CurricularFace"] + e["NormFace"] + 0.5 * e["R_sm"]
        ),
        "learned and adaptive scales": (
            e["NormFace learned"] + 0.5 * e["VS learned"] + e["NormFace"] + e["AdaCos"] + e["CE"]
        ),
        "all spaces": e["LSoftmax"] + e["SphereFace norms"] + e["LMSoftmax lse"] + e["R_sm raw"] + e["R_w"],
    }


def falls(term: Term) -> bool:
    """Whether the loss of a sample must fall as its target cosine rises.

    Not that of prototypes alone, nor one with label smoothing, which asks for less than certainty, nor
    AdaFace, which has no value without its running statistics, nor one whose scale is not a number. Plain
    ArcFace turns at pi - m, and with an easy margin it jumps up where the margin sets in, at t = 0.
    GM-Softmax with alpha2 > alpha1 rewards a smaller target once its own term dominates.
    """
    if isinstance(term, PrototypeTerm | LabelAware | AdaFace) or getattr(term, "label_smoothing", 0):
        return False
    if isinstance(term.need.scale, str | Learnable):
        return False
    if isinstance(term, ArcFace):
        return term.beyond_pi != "plain" and not term.easy_margin
    return term != GMSoftmax(scale=12, alpha1=0.6, alpha2=1.4)


def is_exact(objective: Objective) -> bool:
    """Whether the gradient is that of the value: nothing in it is detached on purpose."""
    terms = [term for _, term in objective.weighted_terms]
    return not any(
        getattr(term, "gradient", "exact") != "exact"
        or isinstance(term, AdaFace | Circle)
        or (isinstance(term, AdaCos) and term.dynamic)
        or (isinstance(term, CurricularFace) and term.momentum > 0)
        for term in terms
    )


def takes_soft_targets(objective: Objective) -> bool:
    """Whether every class can be the label: not if the logits of all others depend on it."""
    terms = [term for _, term in objective.weighted_terms]
    maps = [term.need.rival_map for term in terms]
    follows = any(isinstance(term, AdaCos) and term.dynamic for term in terms)
    return not follows and not any(map_ is not None and map_.thresholded for map_ in maps)


CLASSES = 7
WIDE = 517

TERMS = make_examples(CLASSES)
OBJECTIVES = {**TERMS, **make_sums(CLASSES)}

CASES: dict[str, dict[str, Any]] = {
    "term": TERMS,
    "objective": OBJECTIVES,
    "exact_objective": {name: one for name, one in OBJECTIVES.items() if is_exact(one)},
    "exact_soft_objective": {
        name: one for name, one in OBJECTIVES.items() if is_exact(one) and takes_soft_targets(one)
    },
    "soft_objective": {name: one for name, one in OBJECTIVES.items() if takes_soft_targets(one)},
    "soft_row_term": {
        name: one
        for name, one in TERMS.items()
        if takes_soft_targets(one) and getattr(one, "reduction", "") != "lse"
    },
    "sample_term": {name: term for name, term in TERMS.items() if isinstance(term, SampleTerm)},
    "row_term": {name: term for name, term in TERMS.items() if getattr(term, "reduction", "") != "lse"},
    "falling_term": {name: term for name, term in TERMS.items() if falls(term)},
}
# Made when a test asks for them: half a second for the wide ones, and several files read this one.
SIZES = {"objective_of_two": 2, "wide_objective": WIDE}


def in_row_chunks(
    embeddings: Tensor, weight: Tensor, targets: Tensor, plan: Plan, *, block_size: int, chunk: int
) -> Statistics:
    """The gradient in the forward at any size, or classes in blocks if the loss is no mean over samples."""
    if plan.loss_of_rows is None:
        return streamed(embeddings, weight, targets, plan, block_size=block_size)
    options = Options(plan, block_size, len(weight), fast_products=False, workspace=Workspace())
    return statistics_and_loss(embeddings, weight, targets, options, chunk)


WAYS: dict[str, Producer] = {
    "dense": dense,
    "streamed": partial(streamed, block_size=3),
    "streamed partly kept": partial(streamed, block_size=2, buffer_bytes=400),  # room for a block or two
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`term`, `objective` and the like walk the examples, `way` the means of computing them.

    `exact_objective` leaves out straight-through gradients, which are not those of the value on purpose;
    `row_term` the log-sum-exp over a batch, which has no value per row.
    """
    for name, cases in {**CASES, "way": WAYS}.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, cases.values(), ids=list(cases))
    for name, k in SIZES.items():
        if name in metafunc.fixturenames:
            cases = {**make_examples(k), **make_sums(k)}
            metafunc.parametrize(name, cases.values(), ids=list(cases))


@pytest.fixture(scope="session")
def ways() -> list[Producer]:
    """Dense, and streamed in blocks and chunks that divide neither seven classes nor nine rows."""
    return [*WAYS.values(), partial(in_row_chunks, block_size=3, chunk=2)]


@pytest.fixture(scope="session")
def row_chunks() -> Callable[..., Statistics]:
    """Statistics and loss by chunks of rows; see `in_row_chunks`."""
    return in_row_chunks


@pytest.fixture(scope="session")
def wide_ways() -> list[Producer]:
    """Streamed in blocks that suit 517 classes, and do not divide them."""
    wide: list[Producer] = [
        partial(streamed, block_size=64),
        partial(streamed, block_size=100, buffer_bytes=2**20),
    ]
    return wide


@pytest.fixture(scope="session")
def soft_objectives() -> list[Objective]:
    """The objectives that take soft targets."""
    return list(CASES["soft_objective"].values())


@pytest.fixture(scope="session")
def examples() -> dict[str, Term]:
    """The examples of every catalogue entry, for seven classes."""
    return TERMS


class Batch(NamedTuple):
    """Embeddings, prototypes, labels."""

    embeddings: Tensor
    weight: Tensor
    labels: Tensor

    def to(self, dtype: torch.dtype) -> "Batch":
        """The same batch stored in `dtype`, as leaves that ask for gradients."""
        z, w = (x.detach().to(dtype).requires_grad_() for x in (self.embeddings, self.weight))
        return Batch(z, w, self.labels)


def make_batch(
    n: int = 9,
    d: int = 4,
    k: int = CLASSES,
    *,
    near: float = 0.05,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Batch:
    """Random vectors of random lengths; one sample `near` its prototype and one `near` the antipode."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    weight = draw(k, d) * (0.5 + draw(k, 1).abs())
    embeddings = draw(n, d)
    labels = torch.randint(k, (n,), generator=generator)
    for row, side in enumerate((1, -1)):
        unit = side * normalize(weight[labels[row]]) + near * normalize(embeddings[row])
        embeddings[row] = (1.3 + row) * unit
    return Batch(embeddings, weight, labels).to(dtype)


@pytest.fixture(scope="session")
def new_batch() -> Callable[..., Batch]:
    """Makes batches; see `make_batch`."""
    return make_batch


@pytest.fixture
def batch() -> Batch:
    """Nine samples in four dimensions and seven classes, float64."""
    return make_batch()


@pytest.fixture(scope="session")
def loss_by() -> Callable[..., Tensor]:
    """The loss of an objective, its statistics produced in one of several ways."""

    def loss(way: Producer, objective: Objective, z: Tensor, w: Tensor, labels: Any, **options: Any):
        torch.default_generator.manual_seed(0)  # of random margins
        tables = class_value_tensors(objective, w.shape[0], None, z)
        return loss_of_batch(objective, z, w, labels, produce=way, class_values=tables, **options)[0]

    return loss


@pytest.fixture(scope="session")
def label_kinds() -> dict[str, Callable[[Tensor], Any]]:
    """Hard labels (n,) as each kind of label there is, with an ignored row where that is possible."""

    def ignoring(labels: Tensor) -> Tensor:
        return torch.where(torch.arange(len(labels)) == 3, -100, labels)

    def mixed(labels: Tensor) -> MixedLabels:
        other = labels.roll(1)
        other[0] = labels[0]
        lam = torch.linspace(0, 1, len(labels), dtype=torch.float64)
        return MixedLabels(ignoring(labels), other, lam)

    def soft(labels: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        logits = torch.randn(len(labels), CLASSES, generator=generator, dtype=torch.float64)
        return logits.softmax(1).requires_grad_()

    return {"hard": ignoring, "mixed": mixed, "soft": soft}
