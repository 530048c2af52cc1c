"""Device meshes, FSDP2, torch.distributed.checkpoint and frameworks' checkpoints, on real gloo processes."""

import copy
import io
import math
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tammes import parse
from tammes.heads import PrototypeHead, ShardedPrototypeHead, clip_grad_norm_, load_head, save_head

K, D, N = 7, 5, 12
WHOLE = StateDictOptions(full_state_dict=True)


def classes_mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("classes",))["classes"]


def prototypes():
    return torch.randn(K, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def batch():
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(N, D, dtype=torch.float64, generator=generator)
    return z, torch.randint(K, (N,), generator=generator)


def local(rank, world, *tensors):
    return [tensor.tensor_split(world)[rank] for tensor in tensors]


def sharded_head(kind, weight=None, text="CosFace(s=8, m=0.2) + 0.5*R_sm + 10*R_w", **options):
    where = {"mesh": classes_mesh()} if kind == "mesh" else {}
    head = ShardedPrototypeHead(D, K, parse(text), dtype=torch.float64, **where, **options)
    if weight is not None:
        head.local_weight.detach().copy_(weight[slice(*head.class_range)])
    return head


def plain_head():
    head = PrototypeHead(D, K, parse("CosFace(s=8, m=0.2) + 0.5*R_sm + 10*R_w"), dtype=torch.float64)
    head.weight.data.copy_(prototypes())
    return head


def answers_of_a_mesh(rank, world):
    head = sharded_head("mesh", prototypes())
    z, labels = local(rank, world, *batch())
    z = z.clone().requires_grad_()
    loss = head(z, labels)
    loss.backward()
    copied = copy.deepcopy(head)
    assert torch.equal(copied(z, labels), loss)
    assert isinstance(head.weight, DTensor)
    assert isinstance(head.weight.grad, DTensor)
    rows, whole_grad = head.weight.to_local().detach(), head.weight.grad.full_tensor()
    return loss.detach(), z.grad, rows, whole_grad, head.predict(z), head.class_margin()


@pytest.mark.parametrize("world", [2, 3])
def test_a_head_on_a_mesh_computes_what_a_plain_one_does(world, ranks):
    head, (z, labels) = plain_head(), batch()
    z.requires_grad_()
    head(z, labels).backward()
    results = ranks(world, answers_of_a_mesh, world)
    assert torch.equal(torch.cat([rows for _, _, rows, *_ in results]), prototypes())
    torch.testing.assert_close(torch.cat([grad for _, grad, *_ in results]), world * z.grad)
    assert torch.equal(torch.cat([best for *_, best, _ in results]), head.predict(z))
    for loss, _, _, grad, _, margin in results:
        torch.testing.assert_close(loss, head(z, labels).detach())
        torch.testing.assert_close(grad, head.weight.grad)
        assert margin == head.class_margin()


def refused_meshes(rank):
    square = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "classes"))
    line, group = square["data"], dist.group.WORLD
    texts = []
    wrong = [{"mesh": square}, {"mesh": line, "process_group": group}, {"mesh": line, "sample_rate": 0.5}]
    for options in [*wrong, {"mesh": line, "device": "meta"}]:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            ShardedPrototypeHead(D, K, parse("CE"), **options)
        texts.append(str(caught.value))
    dist.barrier()  # the first rank keeps the store, which the others still make their groups with
    return texts


def test_meshes_that_cannot_be_meant_are_refused_with_a_way_out(ranks):
    for texts in ranks(2, refused_meshes):
        for part, text in zip(
            ['device_mesh["classes"]', "one of them", "get_group()", "cpu"], texts, strict=True
        ):
            assert part in text


def saved_by_torch(rank, kind):
    """What torch.save and copies of a state do, within a model too."""
    model = nn.ModuleDict({"backbone": nn.Linear(3, 3), "head": sharded_head(kind, prototypes())})
    state = model.state_dict()
    weight = state["head.weight"]
    assert isinstance(weight, DTensor)
    assert weight.placements == (Shard(0),)
    assert weight.shape == (K, D)
    assert torch.equal(weight.full_tensor(), prototypes())
    assert model.state_dict(keep_vars=True)["head.weight"] is model["head"].weight
    errors = []
    for content in (state, copy.deepcopy(state), {"state_dict": state, "epoch": 3}):
        with pytest.raises(TypeError) as caught:
            torch.save(content, io.BytesIO())
        errors.append(str(caught.value))
    return errors


@pytest.mark.parametrize("kind", ["group", "mesh"])
def test_pickling_one_rank_s_rows_raises(kind, ranks):
    for errors in ranks(2, saved_by_torch, kind):
        assert len(errors) == 3
        assert all("save_head" in text and "of the 7 rows" in text for text in errors)


def of_one_rank(rank, kind, path):
    head = sharded_head(kind, prototypes())
    torch.save(head.state_dict(), path)
    other = sharded_head(kind)
    other.load_state_dict(torch.load(path, weights_only=True))
    return other.local_weight.detach()


@pytest.mark.parametrize("kind", ["group", "mesh"])
def test_a_single_rank_has_all_rows_and_saves_them(kind, ranks, tmp_path):
    assert torch.equal(*ranks(1, of_one_rank, kind, str(tmp_path / "head.pt")), prototypes())


def loaded_states(rank, kind):
    """The rows after loading each form that a state may have."""
    mesh, weight = classes_mesh(), prototypes()
    replicated = distribute_tensor(weight.clone(), mesh, [Replicate()])
    own = weight[slice(*sharded_head(kind).class_range)]
    forms = [sharded_head(kind, weight).state_dict()["weight"], weight, own, replicated]
    found = []
    for form in forms:
        head = sharded_head(kind)
        head.load_state_dict({"weight": form})
        found.append(head.local_weight.detach().clone())
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        sharded_head(kind).load_state_dict({"weight": torch.zeros(K + 1, D)})
    return found


@pytest.mark.parametrize("kind", ["group", "mesh"])
def test_a_state_is_loaded_from_a_dtensor_from_all_rows_and_from_a_rank_s_own(kind, ranks):
    for found in zip(*ranks(3, loaded_states, kind), strict=True):
        assert torch.equal(torch.cat(found), prototypes())


def model_of(kind, rank):
    """A backbone in FSDP2 and a sharded head, with an optimizer that has stepped."""
    torch.manual_seed(rank)  # FSDP2 takes what each rank has: the backbone is made the same below
    backbone = backbone_of()
    fully_shard(backbone)
    model = nn.ModuleDict({"backbone": backbone, "head": sharded_head(kind, prototypes())})
    groups = [{"params": list(backbone.parameters())}, *model["head"].param_groups()]
    return model, torch.optim.AdamW(groups, lr=0.05)


def backbone_of():
    backbone = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 1), nn.Tanh(), nn.Linear(1, D)).double()
    generator = torch.Generator().manual_seed(5)
    for parameter in backbone.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return backbone


def step_of(model, optimizer, inputs, labels, max_norm, norm_type=2.0):
    optimizer.zero_grad()
    model["head"](model["backbone"](inputs), labels).backward()
    norm = clip_grad_norm_(model.parameters(), max_norm, norm_type)
    optimizer.step()
    return norm


def whole_state(model):
    state = get_model_state_dict(model, options=WHOLE)
    return {name: tensor.clone() for name, tensor in state.items()}


def trained(rank, world, kind, norm_type):
    model, optimizer = model_of(kind, rank)
    inputs, labels = local(rank, world, *batch())
    norms = [step_of(model, optimizer, inputs, labels, 0.1, norm_type) for _ in range(3)]
    return norms, whole_state(model)


@pytest.mark.parametrize(("world", "norm_type"), [(2, 2.0), (3, 2.0), (2, math.inf), (2, 1.0)])
@pytest.mark.parametrize("kind", ["group", "mesh"])
def test_fsdp2_and_a_sharded_head_are_clipped_together_as_one_process_is(kind, world, norm_type, ranks):
    """Some parameters have fewer rows than there are ranks, so that shards are empty."""
    model = nn.ModuleDict({"backbone": backbone_of(), "head": plain_head()})
    groups = [{"params": list(model["backbone"].parameters())}, *model["head"].param_groups()]
    optimizer = torch.optim.AdamW(groups, lr=0.05)
    expected = []
    for _ in range(3):
        optimizer.zero_grad()
        model["head"](model["backbone"](batch()[0]), batch()[1]).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type)
        expected.append(norm.item())
        optimizer.step()
    for norms, state in ranks(world, trained, world, kind, norm_type):
        assert [norm.item() for norm in norms] == pytest.approx(expected, rel=1e-6)
        assert min(expected) > 0.1
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-6, atol=1e-8)


def clipped_alone(rank):
    """Replicated DTensors and ones with a partial gradient, together with a plain tensor."""
    mesh = classes_mesh()
    whole = distribute_tensor(torch.zeros(4), mesh, [Replicate()]).requires_grad_()
    from torch.distributed.tensor import Partial

    whole.grad = DTensor.from_local(torch.full((4,), 1.5), mesh, [Partial()])
    plain = torch.zeros(1, requires_grad=True)
    plain.grad = torch.full((1,), 8.0)
    without = torch.zeros(2, requires_grad=True)
    norm = clip_grad_norm_([plain, whole, without], 1.0)
    assert clip_grad_norm_([], 1.0) == 0
    return norm, plain.grad, whole.grad.full_tensor()


def test_gradients_that_are_still_sums_over_ranks_count_as_their_sum(ranks):
    for norm, plain, whole in ranks(2, clipped_alone):
        assert norm.item() == pytest.approx(10.0)  # 8 and four times 3
        assert plain.tolist() == pytest.approx([0.8])
        assert whole.tolist() == pytest.approx([0.3] * 4)


def written_by_dcp(rank, world, kind, path):
    model, optimizer = model_of(kind, rank)
    inputs, labels = local(rank, world, *batch())
    for _ in range(2):
        step_of(model, optimizer, inputs, labels, 0.1)
    if kind == "mesh":
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=path)
    else:
        dcp.save({"model": model.state_dict()}, checkpoint_id=path)
    before = whole_state(model)
    step_of(model, optimizer, inputs, labels, 0.1)
    return before, whole_state(model)


def read_by_dcp(rank, world, kind, path):
    model, optimizer = model_of(kind, rank)
    model["head"].local_weight.detach().zero_()
    if kind == "mesh":
        weights, states = get_state_dict(model, optimizer)
        stored = {"model": weights, "optimizer": states}
        dcp.load(stored, checkpoint_id=path)
        set_state_dict(
            model, optimizer, model_state_dict=stored["model"], optim_state_dict=stored["optimizer"]
        )
    else:
        stored = {"model": model.state_dict()}
        dcp.load(stored, checkpoint_id=path)
        model.load_state_dict(stored["model"])
    loaded = whole_state(model)
    inputs, labels = local(rank, world, *batch())
    step_of(model, optimizer, inputs, labels, 0.1)
    return loaded, whole_state(model)


@pytest.mark.parametrize("kind", ["group", "mesh"])
def test_torch_s_checkpoints_move_to_another_number_of_ranks_with_the_optimizer_s_rows(kind, ranks, tmp_path):
    path = str(tmp_path / "dcp")
    before, after = ranks(3, written_by_dcp, 3, kind, path)[0]
    for loaded, then in ranks(2, read_by_dcp, 2, kind, path):
        assert set(loaded) == set(before)
        assert all(torch.equal(loaded[name], before[name]) for name in before)
        if kind == "mesh":  # the optimizer went along, so that the next step is the same
            for name, tensor in after.items():
                torch.testing.assert_close(then[name], tensor, rtol=1e-6, atol=1e-8)


def set_from_whole(rank, kind, path):
    """All rows, from a file that one rank wrote, to every rank's model by torch's own function."""
    model, _ = model_of(kind, rank)
    set_model_state_dict(model, torch.load(path, weights_only=True), options=WHOLE)
    return model["head"].local_weight.detach().clone()


@pytest.mark.parametrize("kind", ["group", "mesh"])
def test_all_rows_from_one_file_reach_their_ranks(kind, ranks, tmp_path):
    weight = torch.randn(K, D, dtype=torch.float64)
    state = backbone_of().state_dict()
    named = {f"backbone.{name}": tensor for name, tensor in state.items()} | {"head.weight": weight}
    torch.save(named, tmp_path / "model.pt")
    assert torch.equal(torch.cat(ranks(3, set_from_whole, kind, str(tmp_path / "model.pt"))), weight)


def by_save_head(rank, world, source, target):
    """`save_head` and `load_head` of a head on a mesh, with the optimizer's state."""
    head = sharded_head("mesh", prototypes())
    optimizer = torch.optim.AdamW(head.param_groups(), lr=0.1)
    if source is not None:
        load_head(source, head, optimizer=optimizer)
        assert isinstance(optimizer.state[head.weight]["exp_avg"], DTensor)
    inputs, labels = local(rank, world, *batch())
    head(inputs, labels).backward()
    optimizer.step()
    save_head(target, head, optimizer=optimizer)
    return {
        "weight": head.weight.full_tensor().detach(),
        "exp_avg": optimizer.state[head.weight]["exp_avg"].full_tensor(),
        "step": optimizer.state[head.weight]["step"],
    }


def test_save_head_and_load_head_know_meshes(ranks, tmp_path):
    first = ranks(3, by_save_head, 3, None, str(tmp_path / "3"))[0]
    head = plain_head()
    optimizer = torch.optim.AdamW(head.param_groups(), lr=0.1)
    load_head(tmp_path / "3", head, optimizer=optimizer)
    assert torch.equal(head.weight, first["weight"])
    assert torch.equal(optimizer.state[head.weight]["exp_avg"], first["exp_avg"])
    second = ranks(2, by_save_head, 2, str(tmp_path / "3"), str(tmp_path / "2"))[0]
    head(*batch()).backward()
    optimizer.step()
    assert second["step"] == 2
    torch.testing.assert_close(second["weight"], head.weight.detach())


def in_lightning(rank, folder, gathers):
    """Lightning's Trainer with a ModelCheckpoint, as torchrun would start it."""
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        GROUP_RANK="0",
        TORCHELASTIC_RUN_ID="test",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="1",  # the processes are connected already
    )
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(lightning.LightningModule):
        _ddp_params_and_buffers_to_ignore = ("head.weight",)

        def __init__(self):
            super().__init__()
            self.backbone, self.head = nn.Linear(D, D).double(), sharded_head("group", prototypes())

        def training_step(self, batch, _):
            return self.head(self.backbone(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

        def on_save_checkpoint(self, checkpoint):
            if gathers:
                checkpoint["state_dict"] = get_model_state_dict(self, options=WHOLE)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch()), batch_size=3)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        callbacks=[ModelCheckpoint(folder, filename="last")],
        **quiet,
    )
    trainer.fit(Model(), data)


@pytest.mark.parametrize("gathers", [False, True])
def test_lightning_saves_all_rows_or_raises(gathers, ranks, tmp_path):
    arguments = (str(tmp_path), gathers)
    if not gathers:
        with pytest.raises(AssertionError, match=r"TypeError: This rank has only 4 of the 7 rows"):
            ranks(2, in_lightning, *arguments, timeout=60)
        assert not list(Path(tmp_path).glob("*.ckpt"))
        return
    ranks(2, in_lightning, *arguments)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(state["head.weight"], prototypes())
