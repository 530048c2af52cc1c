"""Several prototypes per class: losses and heads against the formula with each sample's best prototypes."""

import copy
import itertools
import math
import runpy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from tammes import PrototypeHead, load_head, save_head
from tammes.heads import prototype
from tammes.heads._stream import streamed
from tammes.losses import HypersphericalEnergy, MixedLabels, PrototypeTerm, ZeroCentroid
from tammes.losses._engine.plan import Plan

EXAMPLES = runpy.run_path(str(Path(__file__).parents[1] / "losses" / "conftest.py"))
K, C, D, N = EXAMPLES["CLASSES"], 3, 4, 6
KINDS = {
    "dense": {"block_size": None},
    "streamed": {},
    "lean": {"block_size": 2},
    "sampled": {"sample_rate": 1.0},
    "sampled lean": {"sample_rate": 1.0, "block_size": 4},
}


def by_sample(objective):
    """Whether each term has a value per sample that does not depend on the others in the batch."""
    terms = [term for _, term in objective.weighted_terms]
    batch = any(getattr(t, "initial_state", dict)() or t.need.noise for t in terms)
    return not batch and not any(getattr(t, "reduction", "mean") != "mean" for t in terms)


OBJECTIVES = EXAMPLES["OBJECTIVES"]
BY_SAMPLE = {name: one for name, one in OBJECTIVES.items() if by_sample(one)}

pytestmark = pytest.mark.filterwarnings("ignore:.*classes:UserWarning")


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch):
    """Room for the similarities of some blocks of the lean heads, and not of others."""
    monkeypatch.setattr(prototype, "LEAN_BUFFER_BYTES", 600)


def head_of(objective, **options):
    torch.manual_seed(0)
    head = PrototypeHead(D, K, objective, centers=C, dtype=torch.float64, **options)
    with torch.no_grad():
        lengths = torch.rand(K, C, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        head.weight.mul_(lengths + 0.5)
    return head


def batch():
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(N, D, generator=generator, dtype=torch.float64).requires_grad_()
    return z, torch.tensor([0, 3, 6, 3, 1, 5])


def raw_logits(objective):
    return prototype.logit_space(objective) == "raw"


def by_best_prototypes(head, z, labels):
    """The mean over samples of the loss that has a sample's best prototypes for its only ones."""
    terms = head.objective.weighted_terms
    total = sum(weight * of_prototypes(term, head.weight) for weight, term in terms if alone(term))
    rows = head.weight if raw_logits(head.objective) else normalize(head.weight, dim=2)
    for i in range(len(z)):
        best = (rows.detach() @ z[i].detach()).argmax(1)
        weight = head.weight[torch.arange(K), best]
        own = (
            MixedLabels(labels.a[i : i + 1], labels.b[i : i + 1], labels.lam)
            if isinstance(labels, MixedLabels)
            else labels[i : i + 1]
        )
        values = [c * term(z[i : i + 1], weight, own) for c, term in terms if not alone(term)]
        total = total + sum(values) / len(z)
    return total


def alone(term):
    return isinstance(term, PrototypeTerm)


def of_prototypes(term, weight):
    """R_w: the mean of all prototypes. MHE: the mean over all pairs of prototypes of different classes."""
    units = normalize(weight, dim=2)
    if isinstance(term, ZeroCentroid):
        return (units if term.normalize else weight).mean((0, 1)).square().sum()
    assert isinstance(term, HypersphericalEnergy)
    energies = []
    for i, j in itertools.permutations(range(K), 2):
        apart = (units[i][:, None] - units[j]).norm(dim=2)
        energies.append((apart**-term.power if term.power else -apart.log()).mean())
    return torch.stack(energies).mean()


def gradients(loss, leaves, **options):
    found = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True, **options)
    return [g.to_dense() for g in found]


@pytest.mark.parametrize("objective", BY_SAMPLE.values(), ids=list(BY_SAMPLE))
def test_loss_and_gradients_are_those_of_the_best_prototypes(objective):
    z, y = batch()
    soft = torch.rand(N, K, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(1)
    for labels in (y, MixedLabels(y, y.roll(1), 0.3), soft):
        if labels is soft and not EXAMPLES["takes_soft_targets"](objective):
            continue
        reference = head_of(objective)
        expected = by_best_prototypes(reference, z, labels)
        right = [expected, *gradients(expected, (z, reference.weight))]
        for name, options in KINDS.items() if labels is not soft else {"soft": {}}.items():
            head = head_of(objective, **options)
            loss = head(z, labels)
            found = [loss, *gradients(loss, (z, head.weight))]
            torch.testing.assert_close(found, right, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=list(OBJECTIVES))
def test_every_kind_of_head_agrees_on_weighted_batches(objective, monkeypatch):
    """With class weights, mixed and ignored rows; also in chunks of rows, with blocks that split a class."""
    z, y = batch()
    mixed = MixedLabels(torch.where(torch.arange(N) == 3, -100, y), y.roll(1), 0.3)
    found = {}
    for name, options in {**KINDS, "chunks": {"block_size": 4}}.items():
        if name == "chunks":
            monkeypatch.setattr(streamed, "THINNEST_CHUNK", 2)
            monkeypatch.setattr(streamed, "auto_block", lambda rows: 4)
        head = head_of(objective, class_weight=torch.linspace(0.5, 2, K, dtype=torch.float64), **options)
        torch.default_generator.manual_seed(0)  # of random margins
        loss = head(z, mixed).sum()
        found[name] = [loss, *gradients(loss, (z, *head.parameters()))]
        torch.testing.assert_close(found[name], found["dense"], msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("options", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize(
    "text", ["CE(label_smoothing=0.2) + 3*R_w", "ArcFace(s=4, m=0.2) + MHE + R_sm(form='mean')"]
)
def test_gradients_are_those_of_finite_differences(text, options):
    z, y = batch()
    head = head_of(text, class_weight=torch.linspace(0.5, 2, K, dtype=torch.float64), **options)

    def loss(z, weight):
        return torch.func.functional_call(head, {"weight": weight}, (z, y))

    if "sample_rate" in options:  # gradcheck needs dense gradients
        head.eval()
    assert torch.autograd.gradcheck(loss, (z, head.weight.detach().clone().requires_grad_()), fast_mode=True)


def test_the_other_prototypes_of_the_own_class_are_no_rivals():
    head = PrototypeHead(2, 2, "LMSoftmax(s=8)", centers=2, dtype=torch.float64)
    head.weight.data = torch.tensor([[[1.0, 0], [0.9, 0.1]], [[-1.0, 0], [0, -1.0]]], dtype=torch.float64)
    z = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert head(z, torch.tensor([0])).item() == pytest.approx(-1.0)  # the best of class 1 has cosine 0
    both = head(z, MixedLabels(torch.tensor([0]), torch.tensor([1]), 0.5))
    assert both.item() == pytest.approx(-0.5 + 0.5)


def test_rows_without_any_rival_have_finite_gradients():
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    mixed = MixedLabels(torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long), 0.5)
    for options in KINDS.values():
        head = PrototypeHead(3, 2, "CosFace(s=8, m=0.2)", centers=2, dtype=torch.float64, **options)
        loss = head(z, mixed)
        assert all(g.isfinite().all() for g in gradients(loss, (z, head.weight)))


@pytest.mark.parametrize("text", ["ArcFace(s=8, m=0.2)", "CE", "NormFace(s=8) + 0.1*CE"])
def test_a_nan_is_not_hidden(text):
    for options in KINDS.values():
        head = head_of(text, **options)
        head.weight.data[2, 1] = math.nan
        assert head(*batch()).isnan()


@pytest.mark.parametrize("text", ["ArcFace(s=8, m=0.2)", "CE", "NormFace(s=8) + 0.1*CE"])
def test_the_first_of_equal_prototypes_gets_the_gradient(text):
    z = 2 * torch.eye(D, dtype=torch.float64)  # products with a single term are exactly equal
    for name, options in KINDS.items():
        head = head_of(text, **options)
        head.weight.data = head.weight.data[:, :1].expand(-1, C, -1).contiguous()
        (of_weight,) = gradients(head(z, torch.tensor([0, 3, 6, 3])), [head.weight])
        assert of_weight[:, 0].abs().sum(1).all(), name
        assert not of_weight[:, 1:].any(), name


@pytest.mark.parametrize(("n", "centers"), [(256, 1), (256, 3), (512, 2), (2048, 1), (2048, 3), (32, 7)])
def test_blocks_have_the_widths_of_fast_products(n, centers):
    plan = Plan(spaces=("cosine",), rests=(), hardest=(), sums=(), norms=False, centers=centers)
    rows = streamed.whole_classes(streamed.auto_block(n), plan)
    width = rows // centers
    assert width * centers == rows
    assert width % 16 == 0
    assert centers > 1 or width & (width - 1)  # no power of two


@pytest.mark.parametrize("text", ["CurricularFace(s=8)", "AdaFace(s=8)", "VS(counts=[9, 8, 7, 6, 5, 4, 3])"])
def test_statistics_and_class_values_go_by_class(text):
    z, labels = batch()
    expected = gradients(head_of(text, block_size=None)(z, labels), (z,))
    for options in KINDS.values():
        torch.testing.assert_close(gradients(head_of(text, **options)(z, labels), (z,)), expected)


def test_predictions_logits_and_margins():
    head = head_of("ArcFace(s=8, m=0.2)", block_size=4)
    z, _ = batch()
    cosines = torch.einsum("nd,kcd->nkc", normalize(z), normalize(head.weight, dim=2))
    torch.testing.assert_close(head.cosines(z), cosines.amax(2))
    torch.testing.assert_close(head(z), 8 * cosines.amax(2))
    assert head.predict(z).tolist() == cosines.amax(2).argmax(1).tolist()
    assert head.predict(z, top=3).tolist() == cosines.amax(2).topk(3).indices.tolist()
    units = normalize(head.weight.flatten(0, 1).detach(), dim=1)
    classes = torch.arange(K).repeat_interleave(C)
    between = (units @ units.T)[classes[:, None] != classes].max()
    assert head.class_margin().item() == pytest.approx(math.acos(between))


def test_accuracy_counts_classes():
    head = head_of("ArcFace(s=8, m=0.2)")
    z, _ = batch()
    head(z, head.predict(z))
    assert head.terms["accuracy"] == 1


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_second_derivatives_and_recomputation():
    z, labels = batch()
    second, again = [], []
    for options in KINDS.values():
        head = head_of("MVSoftmax(s=4) + CE + R_sm", **options)
        leaves = (z, head.weight)
        first = gradients(head(z, labels), leaves, create_graph=True)
        second.append(gradients(sum(g.square().sum() for g in first), leaves))
        again.append(gradients(checkpoint(head, z, labels, use_reentrant=False), leaves))
        torch.testing.assert_close(again[-1], [g.detach() for g in first])
    for found in second[1:]:
        torch.testing.assert_close(found, second[0])


def test_checkpoints_copies_and_training(tmp_path):
    head, other = head_of("ArcFace(s=8, m=0.2)"), head_of("ArcFace(s=8, m=0.2)")
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    z, labels = batch()
    before = head(z, labels)
    before.backward()
    optimizer.step()
    assert head(z, labels) < before
    save_head(tmp_path / "head", head)
    load_head(tmp_path / "head", other)
    assert torch.equal(other.weight, head.weight)
    assert torch.equal(copy.deepcopy(head)(z, labels), head(z, labels))
    with pytest.raises(ValueError, match=r"The head has centers=1, the checkpoint in .* has 3"):
        load_head(tmp_path / "head", PrototypeHead(D, K, "CE"))


def test_minor_centers_are_dropped_with_the_samples_far_from_the_dominant_one():
    head = PrototypeHead(2, 2, "ArcFace(s=8, m=0.2)", centers=2, class_counts=[3, 1])
    head.weight.data = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[-1.0, 0.0], [0.0, -1.0]]])
    z = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]])
    labels = torch.tensor([0, 0, 0, 1, -100])
    single, kept = head.drop_minor_centers(z, labels, threshold=math.radians(75))
    assert single.centers == 1
    assert single.weight.tolist() == [[1.0, 0.0], [-1.0, 0.0]]
    assert kept.tolist() == [True, True, False, True, False]
    assert single.objective == head.objective
    with pytest.raises(ValueError, match="one prototype per class already"):
        single.drop_minor_centers(z, labels)
    with pytest.raises(ValueError, match=r"threshold must lie in \[0, 3.14159\], got 75. It is in radians"):
        head.drop_minor_centers(z, labels, threshold=75)


def test_dropping_minor_centers_keeps_learned_scales_and_running_statistics():
    head = PrototypeHead(2, 2, "AdaFace(s=Learnable(8))", centers=2)
    z, labels = torch.randn(6, 2), torch.tensor([0, 0, 0, 1, 1, 1])
    head(z, labels)
    with torch.no_grad():
        head.scales["AdaFace"].fill_(5.0)
    single, _ = head.drop_minor_centers(z, labels)
    assert single.scales["AdaFace"].item() == 5.0
    for own, kept in zip(head.running.buffers(), single.running.buffers(), strict=True):
        assert torch.equal(own, kept)


def test_what_is_refused():
    with pytest.raises(ValueError, match='init="packed" places one prototype per class, got centers=3'):
        PrototypeHead(D, K, "CE", centers=3, init="packed")
    with pytest.raises(ValueError, match="centers must be at least 1, got 0"):
        PrototypeHead(D, K, "CE", centers=0)
