import io
import warnings

import pytest
import torch
from torch import nn

from tammes import PrototypeHead
from tammes.heads import RowAdamW, RowSGD
from tammes.losses import NormFace

ROWS, WIDTH = 7, 3
KINDS = {
    "plain": (RowSGD, torch.optim.SGD, {"lr": 0.3}),
    "momentum": (RowSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2}),
    "nesterov": (
        RowSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1, "nesterov": True},
    ),
    "adamw": (RowAdamW, torch.optim.AdamW, {"lr": 0.05}),
    "adamw_settings": (
        RowAdamW,
        torch.optim.AdamW,
        {"lr": 0.1, "betas": (0.0, 0.7), "eps": 1e-3, "weight_decay": 0.3},
    ),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def parameter(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Parameter(torch.randn(ROWS, WIDTH, dtype=dtype))


def sparse(rows, values):
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, (ROWS, WIDTH), check_invariants=True)


def random_gradients(steps, dtype=torch.float64):
    """Gradients of two to five rows each, in random order."""
    torch.manual_seed(1)
    picks = [torch.randperm(ROWS)[: int(torch.randint(2, 6, ()))].tolist() for _ in range(steps)]
    return [(rows, torch.randn(len(rows), WIDTH, dtype=dtype)) for rows in picks]


@kinds
@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_dense_gradients_give_the_steps_of_torch(kind, layout):
    ours_class, theirs_class, settings = KINDS[kind]
    ours, theirs = parameter(), parameter()
    ours_optimizer, theirs_optimizer = ours_class([ours], **settings), theirs_class([theirs], **settings)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 9) for o in (ours_optimizer, theirs_optimizer)]
    for _ in range(8):
        gradient = torch.randn(ROWS, WIDTH, dtype=torch.float64)
        order = torch.randperm(ROWS)
        ours.grad = gradient if layout == "dense" else sparse(order.tolist(), gradient[order])
        theirs.grad = gradient.clone()
        for tool in (ours_optimizer, theirs_optimizer, *schedules):
            tool.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@kinds
@pytest.mark.parametrize("block", [2, 4096])
def test_each_row_is_optimized_independently(kind, block, monkeypatch):
    monkeypatch.setattr("tammes.heads.optim.BLOCK_ROWS", block)
    ours_class, theirs_class, settings = KINDS[kind]
    ours = parameter()
    alone = [nn.Parameter(row.detach().clone()) for row in ours]
    optimizer, lone = ours_class([ours], **settings), [theirs_class([row], **settings) for row in alone]
    for rows, values in random_gradients(12):
        before = ours.detach().clone()
        ours.grad = sparse(rows, values)
        optimizer.step()
        for row, value in zip(rows, values, strict=True):
            alone[row].grad = value
            lone[row].step()
        others = [row for row in range(ROWS) if row not in rows]
        assert torch.equal(ours[others], before[others])
        torch.testing.assert_close(ours.detach(), torch.stack([*alone]).detach(), rtol=1e-12, atol=1e-12)


@kinds
def test_duplicate_rows_in_a_gradient_are_summed(kind):
    optimizer_class, _, settings = KINDS[kind]
    twice, once = parameter(), parameter()
    values = torch.randn(3, WIDTH, dtype=torch.float64)
    twice.grad = sparse([4, 1, 4], values)
    once.grad = sparse([1, 4], torch.stack([values[1], values[0] + values[2]]))
    for weight in (twice, once):
        optimizer_class([weight], **settings).step()
    torch.testing.assert_close(twice, once)


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_state_resumes_bit_for_bit(kind, dtype):
    optimizer_class, _, settings = KINDS[kind]
    gradients = random_gradients(9, dtype)

    def run(weight, optimizer, part):
        for rows, values in part:
            weight.grad = sparse(rows, values)
            optimizer.step()

    straight = parameter(dtype=dtype)
    optimizer = optimizer_class([straight], **settings)
    run(straight, optimizer, gradients[:5])
    file = io.BytesIO()
    torch.save({"weight": straight.detach(), "optimizer": optimizer.state_dict()}, file)
    run(straight, optimizer, gradients[5:])

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = nn.Parameter(saved["weight"])
    optimizer = optimizer_class([resumed], **settings)
    optimizer.load_state_dict(saved["optimizer"])
    run(resumed, optimizer, gradients[5:])
    assert torch.equal(resumed, straight)


def test_state_is_allocated_once_and_counts_steps_by_row():
    weight = parameter()
    optimizer = RowAdamW([weight])
    weight.grad = sparse([0, 2], torch.ones(2, WIDTH, dtype=torch.float64))
    optimizer.step()
    places = {name: value.data_ptr() for name, value in optimizer.state[weight].items()}
    weight.grad = sparse([2, 5], torch.ones(2, WIDTH, dtype=torch.float64))
    optimizer.step()
    assert {name: value.data_ptr() for name, value in optimizer.state[weight].items()} == places
    assert optimizer.state[weight]["step"].tolist() == [1, 0, 2, 0, 0, 1, 0]


def test_steps_are_counted_beyond_what_half_precision_prototypes_could_count():
    weight = nn.Parameter(torch.ones(2, 1, dtype=torch.bfloat16))
    optimizer = RowAdamW([weight])
    weight.grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 1), (2, 1), check_invariants=True).bfloat16()
    for _ in range(300):
        optimizer.step()
    assert optimizer.state[weight]["step"].tolist() == [0, 300]


def test_torch_clips_the_norm_of_a_sparse_gradient_together_with_dense_ones():
    weight, other = parameter(), parameter(seed=2)
    rows, values = random_gradients(1)[0]
    weight.grad, other.grad = sparse(rows, values).coalesce(), torch.ones_like(other)
    try:
        norm = nn.utils.clip_grad_norm_([weight, other], max_norm=0.5)
    except NotImplementedError:
        pytest.skip("this torch has no norm of sparse tensors; 2.9 does not")
    assert norm.item() == pytest.approx((values.square().sum() + ROWS * WIDTH).sqrt().item())
    clipped = weight.grad.coalesce().values().square().sum() + other.grad.square().sum()
    assert clipped.sqrt().item() == pytest.approx(0.5)


def test_a_scaler_unscales_sparse_gradients_and_skips_a_step_that_overflowed():
    weight, plain = parameter(dtype=torch.float32), parameter(dtype=torch.float32)
    optimizer, reference = RowSGD([weight], lr=0.1, momentum=0.9), RowSGD([plain], lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(torch.zeros(()))
    gradient = sparse([1, 4], torch.randn(2, WIDTH))
    weight.grad, plain.grad = gradient * 256, gradient
    scaler.step(optimizer)
    scaler.update()
    reference.step()
    torch.testing.assert_close(weight, plain)

    before = weight.detach().clone()
    weight.grad = sparse([1, 4], torch.full((2, WIDTH), torch.inf))
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(weight, before)
    assert scaler.get_scale() < 256


def test_step_returns_what_the_closure_returns_and_gives_it_gradients():
    weight = parameter()
    optimizer = RowSGD([weight], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum() / 2
        loss.backward()
        return loss

    before = weight.detach().clone()
    assert optimizer.step(closure).item() == pytest.approx((before.square().sum() / 2).item())
    torch.testing.assert_close(weight.detach(), before / 2)


@pytest.mark.parametrize(
    ("optimizer", "settings", "words"),
    [
        (RowSGD, {"lr": -0.1}, "lr must lie in"),
        (RowSGD, {"momentum": -0.1}, "momentum must lie in"),
        (RowSGD, {"nesterov": True}, "nesterov=True requires momentum > 0"),
        (RowAdamW, {"betas": (0.9, 1.0)}, r"betas\[1\] must lie in"),
        (RowAdamW, {"eps": -1.0}, "eps must lie in"),
        (RowAdamW, {"weight_decay": float("nan")}, "weight_decay must be finite"),
    ],
)
def test_settings_out_of_range_are_refused(optimizer, settings, words):
    with pytest.raises(ValueError, match=words):
        optimizer([parameter()], **settings)


def test_a_gradient_that_is_sparse_in_columns_too_is_refused():
    weight = parameter()
    weight.grad = torch.eye(ROWS, WIDTH, dtype=torch.float64).to_sparse()
    with pytest.raises(ValueError, match="one sparse dimension, its rows, got 2"):
        RowSGD([weight]).step()


SPARSE = {
    "RowSGD": (lambda p: RowSGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4), None),
    "RowAdamW": (lambda p: RowAdamW(p, lr=0.1), None),
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1), None),
    "SparseAdam": (lambda p: torch.optim.SparseAdam(p, lr=0.1), None),
    "Adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.1), None),
    "SGD momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum=0.9 keeps moving"),
    "SGD decay": (
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
        "weight_decay=0.01 does not support",
    ),
    "Adagrad decay": (
        lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.01),
        "weight_decay=0.01 does not support",
    ),
    "AdamW": (lambda p: torch.optim.AdamW(p, lr=0.1), "AdamW does not support sparse gradients"),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, lr=0.1), "RMSprop does not support sparse gradients"),
}


@pytest.mark.filterwarnings("ignore:.*classes:UserWarning")
@pytest.mark.parametrize("name", SPARSE)
def test_a_sampled_head_knows_which_optimizers_suit_it(name):
    """And is right: those that it calls good step and leave other rows alone, the others fail or do not."""
    make, fault = SPARSE[name]
    torch.manual_seed(0)
    head = PrototypeHead(4, 50, NormFace(scale=8), sample_rate=0.1)
    optimizer = make([head.weight])
    if fault is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert head.check(optimizer)
    else:
        with pytest.warns(UserWarning, match=f"{fault}.*RowSGD or tammes.heads.RowAdamW"):
            assert not head.check(optimizer)
    assert steps_move_sampled_rows_only(head, optimizer) == (fault is None)


def steps_move_sampled_rows_only(head, optimizer):
    for step in range(3):
        optimizer.zero_grad()
        head(torch.randn(3, 4), torch.tensor([step, 10 + step, 20 + step])).backward()
        before, sampled = head.weight.detach().clone(), head.weight.grad.indices()[0]
        try:
            optimizer.step()
        except RuntimeError:
            return False
        moved = (head.weight != before).any(1).nonzero()[:, 0]
        if not torch.isin(moved, sampled).all():
            return False
    return True


@pytest.mark.filterwarnings("error")
def test_a_head_that_does_not_sample_takes_any_optimizer():
    head = PrototypeHead(50, 50, NormFace(scale=8))
    assert head.check(torch.optim.SGD([head.weight], lr=0.1, momentum=0.9))
    assert head.check(torch.optim.AdamW([head.weight]))
