"""`PrototypeHead`: what a user of PyTorch expects of a module that is the last layer and the loss."""

import copy
import io
import math
import pickle
import pkgutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tammes
from tammes import MixedLabels, PrototypeHead, parse, sample_margins
from tammes.losses import (
    LDAM,
    ArcFace,
    CosFace,
    CrossEntropy,
    LMSoftmax,
    LSoftmax,
    NormFace,
    SampleMargin,
    SphereFace,
    ZeroCentroid,
)

COUNTS = [500, 100, 50, 20, 10, 5, 2]


def test_the_head_equals_its_functional_form(head, embeddings, labels):
    loss, twin = head(embeddings, labels), head.objective(embeddings, head.weight, labels)
    torch.testing.assert_close(loss, twin)
    leaves = (embeddings, head.weight)
    for mine, other in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(twin, leaves), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("block_size", [None, 1, 3, 7, 100, "auto"])
def test_block_sizes_change_nothing(objective, embeddings, labels, block_size):
    head = PrototypeHead(5, 7, objective, block_size=block_size)
    for some in (labels, MixedLabels(labels, labels.roll(1), 0.3), F.one_hot(labels, 7).float()):
        torch.testing.assert_close(head(embeddings, some), objective(embeddings, head.weight, some))


def test_options_reach_the_loss(objective, embeddings, labels):
    class_weight, sample_weight = torch.rand(7), torch.rand(11)
    head = PrototypeHead(5, 7, objective, class_weight=class_weight, ignore_index=3)
    options = {"sample_weight": sample_weight, "reduction": "none"}
    loss = head(embeddings, labels, **options)
    twin = objective(embeddings, head.weight, labels, class_weight=class_weight, ignore_index=3, **options)
    torch.testing.assert_close(loss, twin)
    assert loss.shape == (11,)


def test_terms_are_those_of_the_last_forward(head, embeddings, labels):
    labels[4] = -100
    assert head.terms == {}
    head(embeddings, labels)
    kept = labels != -100
    with torch.no_grad():
        z, y = embeddings[kept], labels[kept]
        expected = {
            "CosFace": CosFace(scale=8, margin=0.2)(z, head.weight, y),
            "SampleMargin": -sample_margins(z, head.weight, y).mean(),
            "ZeroCentroid": F.normalize(head.weight, dim=1).mean(0).square().sum(),
            "accuracy": (head.predict(z) == y).float().mean(),
            "margin": sample_margins(z, head.weight, y).mean(),
        }
    assert list(head.terms) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(head.terms[name], value)
        assert not head.terms[name].requires_grad


def test_the_keys_of_terms_survive_a_margin_warm_up_and_tell_equal_classes_apart(embeddings, labels):
    head = PrototypeHead(5, 7, "ArcFace(s=8, m=0.1) + R_w + 0.5*R_w(normalize=False)")
    head(embeddings, labels)
    names = ["ArcFace", "ZeroCentroid", "ZeroCentroid_2", "accuracy", "margin"]
    assert list(head.terms) == names
    assert head.terms["ZeroCentroid_2"] == ZeroCentroid(normalize=False)(embeddings, head.weight, labels)
    head.objective = "ArcFace(s=8, m=0.5) + R_w + 0.5*R_w(normalize=False)"
    head(embeddings, labels)
    assert list(head.terms) == names


def test_an_objective_may_be_given_as_text(embeddings, labels):
    head = PrototypeHead(5, 7, "CosFace(s=8, m=0.2) + 0.5*R_sm")
    assert head.objective == CosFace(scale=8, margin=0.2) + 0.5 * SampleMargin()
    head.objective = "CE"
    assert head.objective == CrossEntropy()
    assert copy.deepcopy(head)(embeddings, labels) == CrossEntropy()(embeddings, head.weight, labels)


@pytest.mark.usefixtures("unchecked")
def test_sizes_may_be_numpy_integers(embeddings, labels):
    head = PrototypeHead(np.int64(5), np.int32(7), "NormFace(s=8)", block_size=np.int64(2))
    assert [type(n) for n in (head.in_features, head.num_classes, head.block_size)] == [int] * 3
    assert head(embeddings, labels).isfinite()
    assert head.predict(embeddings, top=np.int64(2)).shape == (11, 2)


def test_terms_are_weighted_by_sample_and_do_not_depend_on_the_reduction(head, embeddings, labels):
    sample_weight = torch.rand(11)
    head(embeddings, labels, sample_weight=sample_weight)
    reduced = head.terms
    head(embeddings, labels, sample_weight=sample_weight, reduction="none")
    assert reduced == head.terms
    margins = sample_margins(embeddings, head.weight, labels)
    torch.testing.assert_close(
        head.terms["margin"], (sample_weight * margins).sum().detach() / sample_weight.sum()
    )


def test_accuracy_gives_a_tie_to_the_lowest_class():
    head = PrototypeHead(2, 3, NormFace(scale=4))
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0], [0, 1], [0, 1]]))
    z = torch.tensor([[0.0, 1.0]])
    for label, right in ((0, 0.0), (1, 1.0), (2, 0.0)):
        head(z, torch.tensor([label]))
        assert head.terms["accuracy"] == right
    assert head.predict(z).tolist() == [1]
    assert head.predict(z, top=3).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(
    ("objective", "scale", "unit_rows", "unit_columns"),
    [
        (CosFace(scale=8, margin=0.2), 8, True, True),
        (parse("0.5*R_sm + NormFace(s=6) + CosFace(s=9, m=0.1)"), 6, True, True),
        (CrossEntropy(), 1, False, False),
        (parse("R_w + Focal(gamma=2)"), 1, False, False),
        (LSoftmax(), 1, False, False),
        (CrossEntropy(normalize=True, scale=5), 5, True, True),
        (SphereFace(scale=3, margin=2, normalize_features=False), 3, False, True),
        (parse("R_sm"), 1, True, True),
    ],
    ids=str,
)
def test_logits_are_those_of_the_first_loss_without_margin(
    objective, scale, unit_rows, unit_columns, embeddings
):
    head = PrototypeHead(5, 7, objective)
    nn.init.normal_(head.weight)
    z = F.normalize(embeddings, dim=1) if unit_rows else embeddings
    w = F.normalize(head.weight, dim=1) if unit_columns else head.weight
    truth = scale * z @ w.T
    torch.testing.assert_close(head(embeddings), truth)
    torch.testing.assert_close(head.logits(embeddings), truth)
    torch.testing.assert_close(
        head.cosines(embeddings), F.normalize(embeddings, dim=1) @ F.normalize(head.weight, dim=1).T
    )
    order = truth.argsort(dim=1, descending=True)
    assert head.predict(embeddings).equal(order[:, 0])
    assert head.predict(embeddings, top=3).equal(order[:, :3])
    assert head.predict(embeddings, top=7).equal(order)


def test_predicting_in_blocks_is_predicting_at_once(embeddings):
    whole = PrototypeHead(5, 7, NormFace(scale=4))
    for block_size in (1, 2, 3, 100):
        parts = PrototypeHead(5, 7, NormFace(scale=4), block_size=block_size)
        parts.load_state_dict(whole.state_dict())
        assert parts.predict(embeddings, top=4).equal(whole.predict(embeddings, top=4))


def test_logits_have_gradients_and_predictions_none(head, embeddings):
    head(embeddings).sum().backward()
    assert head.weight.grad is not None
    assert not head.predict(embeddings).requires_grad


def test_state_dict_has_stable_keys_and_round_trips(embeddings, labels):
    objective = LDAM(scale=8) + ArcFace(scale=8, margin=[0.1 * j for j in range(7)])
    head = PrototypeHead(5, 7, objective, class_counts=COUNTS, class_weight=torch.rand(7))
    assert list(head.state_dict()) == ["weight", "class_counts", "class_weight"]
    assert list(PrototypeHead(5, 7, NormFace(scale=8)).state_dict()) == ["weight"]
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    other = PrototypeHead(5, 7, objective, class_counts=[7] * 7, class_weight=[1] * 7)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other(embeddings, labels) == head(embeddings, labels)


def test_loading_does_not_write_into_the_tensors_it_was_built_from():
    counts, weight = torch.tensor(COUNTS), torch.ones(7)
    head = PrototypeHead(5, 7, LDAM(scale=8), class_counts=counts, class_weight=weight)
    state = {**head.state_dict(), "class_counts": counts + 1, "class_weight": weight + 1}
    head.load_state_dict(state)
    assert counts.tolist() == COUNTS
    assert weight.tolist() == [1] * 7


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda head: pickle.loads(pickle.dumps(head))])
def test_copies_and_pickles_are_independent_and_equal(copy_of, embeddings, labels):
    objective = CosFace(scale=8, margin=[0.1 * j for j in range(7)]) + LDAM(scale=4)
    head = PrototypeHead(5, 7, objective, class_counts=COUNTS)
    loss = head(embeddings, labels)
    twin = copy_of(head)
    assert twin.objective == objective
    assert twin.terms == head.terms
    assert twin(embeddings, labels) == loss
    with torch.no_grad():
        twin.weight.neg_()
    twin.objective = NormFace(scale=4)
    assert head(embeddings, labels) == loss


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_casting_keeps_the_margins_of_each_class(dtype, embeddings, labels):
    margins = [0.1 * j + 0.001 for j in range(7)]
    head = PrototypeHead(5, 7, CosFace(scale=8, margin=margins), dtype=torch.float64).to(dtype)
    assert head.weight.dtype == dtype
    z, w = embeddings.to(dtype), head.weight
    truth = head.objective(z.double(), w.double(), labels)
    loss = head(z, labels)
    torch.testing.assert_close(loss, truth.to(loss.dtype))


def test_no_forward_changes_the_dtype_of_the_prototypes(objective, labels):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        head = PrototypeHead(5, 7, objective, dtype=dtype)
        for other in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            z = torch.randn(11, 5, dtype=other)
            loss = head(z, labels)
            (gradient,) = torch.autograd.grad(loss, head.weight)
            for use in (head, head.predict, head.cosines):
                use(z)
            assert head.weight.dtype == gradient.dtype == dtype
            assert loss.dtype == (torch.float64 if torch.float64 in (dtype, other) else torch.float32)


def test_autocast_leaves_the_loss_in_float32(objective, labels):
    torch.manual_seed(0)
    network, head = nn.Linear(6, 5), PrototypeHead(5, 7, objective)
    images = torch.randn(11, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings = network(images)
        loss, logits = head(embeddings, labels), head(embeddings)
    assert embeddings.dtype == torch.bfloat16
    torch.testing.assert_close(loss, head(embeddings.float(), labels), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits, head(embeddings.float()), rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(loss, network.weight)
    assert gradient.isfinite().all()


def test_fast_products_are_as_accurate_as_their_dtype(objective, embeddings, labels):
    exact, fast = (PrototypeHead(5, 7, objective, fast_products=flag) for flag in (False, True))
    fast.load_state_dict(exact.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = fast(embeddings, labels)
    loss.backward()
    truth = exact(embeddings, labels)
    assert loss.dtype == torch.float32
    assert loss != truth
    torch.testing.assert_close(loss, truth, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("norm", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("factor", [1e-6, 1.0, 65536.0])
def test_fast_products_do_not_overflow_or_underflow_in_float16(
    objective, embeddings, labels, norm, factor, monkeypatch
):
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.float16)
    exact, fast = (PrototypeHead(5, 7, objective, fast_products=flag) for flag in (False, True))
    exact.weight.data.mul_(norm)
    fast.load_state_dict(exact.state_dict())
    for head in (exact, fast):
        (factor * head(embeddings, labels)).backward()
    error = (fast.weight.grad - exact.weight.grad).norm() / exact.weight.grad.norm()
    assert 0 < error < 0.01


def test_meta_device_and_back(embeddings, labels):
    head = PrototypeHead(5, 7, CosFace(scale=8, margin=[0.1] * 7), device="meta")
    assert head.weight.is_meta
    head = head.to_empty(device="cpu")
    head.reset_parameters()
    assert head(embeddings, labels).isfinite()


def test_random_prototypes_are_unit_vectors_from_torchs_generator():
    torch.manual_seed(3)
    first = PrototypeHead(5, 7, NormFace(scale=8)).weight
    torch.manual_seed(3)
    second = PrototypeHead(5, 7, NormFace(scale=8)).weight
    assert first.equal(second)
    assert not first.equal(PrototypeHead(5, 7, NormFace(scale=8)).weight)
    torch.testing.assert_close(first.norm(dim=1), torch.ones(7))


def test_packed_prototypes_are_as_far_apart_as_they_can_be():
    head = PrototypeHead(3, 4, NormFace(scale=8), init="packed", dtype=torch.float64)
    assert torch.rad2deg(head.class_margin()).item() == pytest.approx(109.4712, abs=1e-3)
    assert head.class_margin() == tammes.class_margin(head.weight.detach())


def test_packed_prototypes_do_not_depend_on_the_seed():
    heads = [PrototypeHead(5, 6, NormFace(scale=8), init="packed") for _ in range(2)]
    assert heads[0].weight.equal(heads[1].weight)  # as ranks with different seeds need


def test_non_negative_features_can_come_near_every_packed_prototype():
    weight = PrototypeHead(32, 10, NormFace(scale=8), init="packed").weight.detach()
    nearest = weight.clamp(min=0).norm(dim=1)  # the largest cosine with a non-negative vector
    assert nearest.min() > 0.4


def test_frozen_prototypes_stay(objective, embeddings, labels):
    head = PrototypeHead(5, 7, objective, trainable=False)
    before = head.weight.clone()
    head(embeddings, labels).backward()
    assert head.weight.grad is None
    assert embeddings.grad.ne(0).any()
    assert head.weight.equal(before)


def test_param_groups_keep_weight_decay_from_the_prototypes(head):
    network = nn.Linear(6, 5)
    groups = [{"params": network.parameters()}, *head.param_groups(lr=0.3)]
    optimizer = torch.optim.SGD(groups, lr=0.1, weight_decay=0.5)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.3]
    assert head.check(optimizer)
    assert torch.optim.SGD(head.param_groups(), lr=0.1).param_groups[0]["lr"] == 0.1
    assert head.param_groups(weight_decay=0.2)[0]["weight_decay"] == 0.2


def test_a_forgotten_head_is_noticed(head, objective):
    optimizer = torch.optim.SGD(nn.Linear(6, 5).parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"does not hold the head's prototypes.*add_param_group"):
        assert not head.check(optimizer)
    frozen = PrototypeHead(5, 7, objective, trainable=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not frozen.check(optimizer)
        optimizer.add_param_group(head.param_groups(lr=0.1)[0])
        assert head.check(optimizer)


def test_the_objective_may_change_between_steps(head, embeddings, labels):
    for margin in (0.0, [0.1 * j for j in range(7)], 0.3):
        head.objective = CosFace(scale=8, margin=margin)
        assert list(head.state_dict()) == ["weight"]
        torch.testing.assert_close(
            head(embeddings, labels), CosFace(scale=8, margin=margin)(embeddings, head.weight, labels)
        )


def test_training_drives_the_prototypes_to_the_simplex():
    torch.manual_seed(0)
    head, features = PrototypeHead(6, 7, LMSoftmax(scale=20)), nn.Parameter(torch.randn(7, 6))
    optimizer = torch.optim.Adam([{"params": [features]}, *head.param_groups(lr=0.1)], lr=0.1)
    start = torch.rad2deg(head.class_margin())
    for _ in range(150):
        optimizer.zero_grad()
        head(features, torch.arange(7)).backward()
        optimizer.step()
    largest = math.degrees(math.acos(-1 / 6))
    assert start < 0.6 * largest
    assert torch.rad2deg(head.class_margin()) > 0.98 * largest


def test_repr_shows_sizes_and_objective(head):
    assert repr(head) == "PrototypeHead(5, 7, 'CosFace(s=8, m=0.2) + 0.5*R_sm + 10*R_w')"


def test_an_objective_can_be_assigned_while_other_threads_run_forwards(embeddings, labels):
    head = PrototypeHead(5, 7, NormFace(scale=8))
    objectives = [
        CosFace(scale=8, margin=[0.1 * j for j in range(7)]),
        NormFace(scale=4),
        LDAM(scale=8, counts=COUNTS),
    ]
    right = {objective(embeddings, head.weight, labels).item() for objective in objectives}
    head.objective = objectives[0]
    done = Event()

    def forwards():
        values = []
        while not done.is_set():
            values.append(head(embeddings, labels).item())
        return values

    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(forwards) for _ in range(2)]
        for step in range(300):
            head.objective = objectives[step % 3]
        done.set()
        for value in (value for future in running for value in future.result()):
            assert any(value == pytest.approx(truth, rel=1e-5) for truth in right)


@pytest.mark.parametrize("sample_rate", [None, 1.0])
@pytest.mark.parametrize("block_size", ["auto", None])
def test_torch_func_differentiates_a_head(head, embeddings, labels, block_size, sample_rate):
    other = PrototypeHead(
        5, 7, parse("CosFace(s=8, m=0.2) + MHE"), block_size=block_size, sample_rate=sample_rate
    )
    weight = other.weight.detach()

    def loss(weight, z, y):
        return torch.func.functional_call(other, {"weight": weight}, (z, y))

    found = torch.func.grad(loss, argnums=(0, 1))(weight, embeddings.detach(), labels)
    expected = torch.autograd.grad(other(embeddings, labels), (other.weight, embeddings))
    torch.testing.assert_close(found, tuple(g.to_dense() for g in expected))


def test_torch_func_gives_gradients_per_sample(head, embeddings, labels):
    z, weight = embeddings.detach(), head.weight.detach()

    def loss(weight, row, label):
        return torch.func.functional_call(head, {"weight": weight}, (row[None], label[None]))

    found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weight, z, labels)
    for row, label, gradient in zip(z, labels, found, strict=True):
        expected = torch.autograd.grad(head(row[None], label[None]), head.weight)[0]
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("options", [{}, {"sample_rate": 0.5}], ids=["all classes", "sampled"])
def test_a_whole_pickled_head_loads_with_weights_only_once_its_classes_are_trusted(
    options, embeddings, labels
):
    objective = CosFace(scale=8, margin=[0.1 * j for j in range(7)]) + 0.5 * LDAM(scale=4)
    head = PrototypeHead(5, 7, objective, class_counts=COUNTS, **options)
    head(embeddings, labels).backward()
    file = io.BytesIO()
    torch.save(head, file)
    file.seek(0)
    needed = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    assert not any("workspace" in name.lower() or "Goal" in name for name in needed)
    assert all(name.startswith("tammes.") for name in needed)
    file.seek(0)
    with torch.serialization.safe_globals([pkgutil.resolve_name(name) for name in needed]):
        other = torch.load(file, weights_only=True)
    assert other.objective == objective
    assert other.eval()(embeddings, labels) == head.eval()(embeddings, labels)


def test_the_older_onnx_exporter_knows_every_operation_of_the_logits(head):
    pytest.importorskip("onnx")
    model = nn.Sequential(nn.Linear(4, 5), head).eval()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's tracer, about every check of a shape
        torch.onnx.export(model, (torch.randn(2, 4),), file, dynamo=False)
    assert len(file.getvalue()) > 100
