"""Learned and adaptive scales: their gradients in every head, and what else a parameter of a head must do."""

import copy
import dataclasses
import math
import runpy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from tammes import AdaCos, Learnable, PrototypeHead, load_head, parse, save_head
from tammes.heads import RowAdamW, prototype
from tammes.heads._stream import streamed
from tammes.losses import MixedLabels

EXAMPLES = runpy.run_path(str(Path(__file__).parents[1] / "losses" / "conftest.py"))
K, D, N = EXAMPLES["CLASSES"], 4, 9
KINDS = {
    "dense": {"block_size": None},
    "streamed": {},
    "lean": {"block_size": 2},
    "sampled": {"sample_rate": 1.0, "block_size": 3},
}
TERMS = {
    type(term): term  # one of each loss with a scale, the last example of it
    for term in EXAMPLES["TERMS"].values()
    if hasattr(term, "scale") and getattr(term, "normalize", True)
}
pytestmark = pytest.mark.filterwarnings("ignore:.*classes:UserWarning")


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    """Room for a few rows or blocks only: a head with a fixed scale would go by chunks of rows."""
    monkeypatch.setattr(prototype, "BUFFER_BYTES", 4 * K * 8)
    monkeypatch.setattr(prototype, "LEAN_BUFFER_BYTES", 400)
    monkeypatch.setattr(streamed, "THINNEST_CHUNK", 1)


def head_of(objective, weight, **options):
    torch.manual_seed(0)
    head = PrototypeHead(D, len(weight), objective, dtype=weight.dtype, **options)
    head.weight.data.copy_(weight)
    return head


def slope_of(objective, z, weight, labels, s=12.0, step=1e-5):
    """The derivative of the loss by the scale, from its values at two fixed scales."""
    values = []
    for scale in (s + step, s - step):
        torch.manual_seed(1)
        values.append(dataclasses.replace(objective, scale=scale)(z, weight, labels).mean().item())
    return (values[0] - values[1]) / (2 * step)


def found_slope(head, z, labels):
    torch.manual_seed(1)
    (gradient,) = torch.autograd.grad(head(z, labels).mean(), list(head.scales.values()))
    return gradient.item()


@pytest.mark.parametrize("term", TERMS.values(), ids=[kind.__name__ for kind in TERMS])
def test_the_gradient_of_the_scale_is_that_of_the_loss(term):
    z, weight, labels = (x.detach() for x in EXAMPLES["make_batch"](N, D, K, near=0.4))
    labels = torch.where(torch.arange(N) == 3, -100, labels)
    if term.need.noise:  # heads and functions draw it from different places
        term = dataclasses.replace(term, std=0.0)
    learned = dataclasses.replace(term, scale=Learnable(12))
    for marks in (labels, MixedLabels(labels, labels.roll(1), 0.3)):
        expected = slope_of(term, z, weight, marks)
        for name, options in KINDS.items():
            found = found_slope(head_of(learned, weight, **options), z, marks)
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_gradient_of_the_scale_in_low_precision(dtype):
    z, weight, labels = (x.detach() for x in EXAMPLES["make_batch"](33, D, 517, near=0.4))
    z, weight = z.to(dtype), weight.to(dtype)
    expected = slope_of(parse("CosFace(s=12, m=0.2)"), z.double(), weight.double(), labels)
    for options in ({"block_size": None}, {"block_size": 64}, {}):
        head = head_of("CosFace(s=Learnable(12), m=0.2)", weight, **options)
        assert head.scales["CosFace"].dtype == dtype
        rounded = float(torch.tensor(expected).to(dtype))
        assert found_slope(head, z, labels) == pytest.approx(rounded, rel=1e-5)


def test_a_frozen_head_still_learns_its_scale():
    z, weight, labels = (x.detach() for x in EXAMPLES["make_batch"](N, D, K))
    for options in KINDS.values():
        head = head_of("NormFace(s=Learnable(12))", weight, trainable=False, **options)
        expected = slope_of(parse("NormFace(s=12)"), z, weight, labels)
        assert found_slope(head, z, labels) == pytest.approx(expected, rel=1e-6)


def test_the_scale_is_a_parameter_of_the_head(tmp_path):
    text = "CosFace(s=Learnable(12), m=0.2) + 0.5*NormFace(s=Learnable(4)) + R_sm"
    head = PrototypeHead(D, K, text, class_counts=range(1, K + 1))
    assert str(head.objective) == text
    assert list(head.state_dict()) == ["weight", "class_counts", "scales.CosFace", "scales.NormFace"]
    prototypes, scales = head.param_groups(lr=0.1, weight_decay=0.5)
    assert scales["params"] == list(head.scales.values())
    assert (prototypes["weight_decay"], scales["weight_decay"], scales["lr"]) == (0.5, 0.0, 0.1)
    head.scales["CosFace"].data.fill_(9.0)
    head.objective = "CosFace(s=Learnable(12), m=0.3)"  # a margin that is warmed up
    assert {name: s.item() for name, s in head.scales.items()} == {"CosFace": 9.0}
    z = torch.randn(N, D)
    torch.testing.assert_close(head(z), 9 * head.cosines(z))
    assert copy.deepcopy(head).scales["CosFace"].item() == 9.0
    names = [str(j) for j in range(K)]
    save_head(tmp_path / "head", head, classes=names)
    for classes in (None, names[::-1]):
        other = PrototypeHead(D, K, "CosFace(s=Learnable(5), m=0.3)", class_counts=[1] * K)
        load_head(tmp_path / "head", other, classes=classes)
        assert other.scales["CosFace"].item() == 9.0
    head.reset_parameters()
    assert head.scales["CosFace"].item() == 12.0
    head.objective = "CosFace(s=12, m=0.3)"
    assert head.scales is None
    assert len(head.param_groups()) == 1


@pytest.mark.parametrize("make", [partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW])
def test_checkpoints_have_the_optimizer_state_of_the_scale(make, tmp_path):
    z, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 4, 0])
    text = "CosFace(s=Learnable(8), m=0.2) + NormFace(s=Learnable(4))"
    head, other, plain = (PrototypeHead(4, 5, objective) for objective in (text, text, "NormFace(s=4)"))
    optimizers = [make(one.param_groups(lr=0.1)) for one in (head, other, plain)]

    def step(head, optimizer):
        optimizer.zero_grad()
        head(z, labels).backward()
        optimizer.step()

    step(head, optimizers[0])
    save_head(tmp_path / "head", head, optimizer=optimizers[0])
    load_head(tmp_path / "head", other, optimizer=optimizers[1])
    load_head(tmp_path / "head", plain, optimizer=optimizers[2])  # the scales are not needed
    assert set(optimizers[2].state[plain.weight]) == set(optimizers[0].state[head.weight])
    step(head, optimizers[0])
    step(other, optimizers[1])
    for name, scale in head.scales.items():
        assert torch.equal(other.scales[name], scale)


def test_the_meta_device():
    head = PrototypeHead(D, K, "CosFace(s=Learnable(12), m=0.2)", device="meta")
    head.to_empty(device="cpu").reset_parameters()
    assert head.scales["CosFace"].item() == 12.0


def test_an_optimizer_without_the_scale_is_named():
    head = PrototypeHead(D, K, "CosFace(s=Learnable(12), m=0.2)")
    assert head.check(RowAdamW(head.param_groups()))
    with pytest.warns(UserWarning, match="does not hold the head's learned scales"):
        assert not head.check(torch.optim.SGD([head.weight], lr=0.1))


def test_learning_lowers_the_loss():
    z, weight, labels = (x.detach() for x in EXAMPLES["make_batch"](N, D, K))
    head = head_of("CosFace(s=Learnable(12), m=0.2)", weight, trainable=False)
    optimizer = torch.optim.SGD(head.param_groups()[1:], lr=1.0)
    before = head(z, labels)
    before.backward()
    optimizer.step()
    assert head(z, labels) < before
    assert head.scales["CosFace"] < 12


@pytest.mark.parametrize("options", KINDS.values(), ids=list(KINDS))
def test_adacos_follows_the_paper_with_the_sum_of_the_step_before(options):
    z, weight, _ = (x.detach() for x in EXAMPLES["make_batch"](N, D, K, near=0.4))
    head = head_of(AdaCos(), weight, **options)
    cosines = normalize(z) @ normalize(weight).T
    scale = math.sqrt(2) * math.log(K - 1)
    assert head.logit_scale.item() == pytest.approx(scale)
    mean = K - 1.0
    for seed in range(3):
        labels = torch.randint(K, (N,), generator=torch.Generator().manual_seed(seed))
        labels[4] = -100
        kept = labels != -100
        own = torch.where(kept, labels, 0)[:, None]
        median = cosines.gather(1, own)[kept].acos().median().item()
        scale = max(math.log(mean) / math.cos(min(math.pi / 4, median)), 1.0)
        loss = head(z, labels)
        expected = torch.nn.functional.cross_entropy(scale * cosines, labels)
        assert loss.item() == pytest.approx(expected.item())
        assert head.logit_scale.item() != pytest.approx(scale)  # the sum is known now
        mean = (scale * cosines).exp().scatter(1, own, 0.0).sum(1)[kept].mean().item()
    before = head.logit_scale
    head.eval()(z, labels)
    assert torch.equal(head.logit_scale, before)
    head.train()(z, torch.full_like(labels, -100))
    assert torch.equal(head.logit_scale, before)


def test_what_is_refused():
    z, weight, _ = (x.detach() for x in EXAMPLES["make_batch"](N, D, K))
    with pytest.raises(ValueError, match=r"AdaCos follows the angle to the label, which soft targets"):
        head_of(AdaCos(), weight)(z, torch.full((N, K), 1 / K))
    with pytest.raises(ValueError, match="Learnable's starting value must be positive, got 0"):
        parse("NormFace(s=Learnable(0))")
    with pytest.raises(ValueError, match="CE of raw inner products takes no scale, got s=Learnable"):
        parse("CE(s=Learnable(2))")
