"""Several prototypes per class, sharded: against one process, sampled, re-sharded."""

import runpy
from pathlib import Path

import pytest
import torch

from tammes import PrototypeHead
from tammes.geometry import class_margin
from tammes.heads import ShardedPrototypeHead, load_head, save_head
from tammes.losses import MixedLabels

EXAMPLES = runpy.run_path(str(Path(__file__).parents[1] / "losses" / "conftest.py"))
K, C, D, SIZES = EXAMPLES["CLASSES"], 3, 4, [4, 0, 5]
KINDS = {"streamed": {}, "lean": {"block_size": 2}, "sampled": {"sample_rate": 1.0}}
FEW = ["CE smooth", "MVSoftmax", "MHE", "raw and cosine", "R_sm mean"]

pytestmark = pytest.mark.filterwarnings("ignore:.*classes:UserWarning")


def prototypes(k=K, dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(k, C, D, generator=generator, dtype=torch.float64).to(dtype)


def batch(k=K, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(sum(SIZES), D, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(k, (sum(SIZES),), generator=generator)
    return z, MixedLabels(torch.where(torch.arange(len(z)) == 3, -100, labels), labels.roll(1), 0.3)


def part_of(rank, labels):
    return MixedLabels(labels.a.split(SIZES)[rank], labels.b.split(SIZES)[rank], labels.lam)


def sharded(objective, k=K, dtype=torch.float64, **options):
    torch.manual_seed(0)
    weights = torch.linspace(0.5, 2, k, dtype=torch.float64)
    head = ShardedPrototypeHead(D, k, objective, centers=C, class_weight=weights, dtype=dtype, **options)
    head.weight.data.copy_(prototypes(k, dtype)[slice(*head.class_range)])
    return head


def single(objective, k=K, dtype=torch.float64):
    torch.manual_seed(0)
    weights = torch.linspace(0.5, 2, k, dtype=torch.float64)
    head = PrototypeHead(D, k, objective, centers=C, class_weight=weights, block_size=None, dtype=dtype)
    head.weight.data.copy_(prototypes(k, dtype))
    return head


def step(rank, head, dtype=torch.float64):
    """Loss, and gradients of the local embeddings, the local prototypes and the learned scales."""
    z, labels = batch(head.num_classes, dtype)
    z = z.split(SIZES)[rank].clone().requires_grad_()
    torch.manual_seed(0)  # of random margins
    loss = head(z, part_of(rank, labels))
    loss.sum().backward()
    return [loss.detach(), gradient(z) / len(SIZES), *map(gradient, head.parameters())]


def gradient(leaf):
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.to_dense()


def walk(rank, names, k, dtype):
    """By name and kind of head, what `step` finds."""
    every = objectives(k)
    return {
        name: {
            kind: step(rank, sharded(every[name], k, dtype, **options), dtype)
            for kind, options in KINDS.items()
        }
        for name in names
    }


def objectives(k):
    """Those with one value for the batch, so that gradients are comparable."""
    every = {**EXAMPLES["make_examples"](k), **EXAMPLES["make_sums"](k)}
    return {name: one for name, one in every.items() if "none" not in name and "Elastic" not in name}


def in_one_process(objective, k, dtype):
    head = single(objective, k, dtype)
    z, labels = batch(k, dtype)
    z.requires_grad_()
    loss = head(z, labels)
    loss.backward()
    return [loss.detach(), gradient(z), *map(gradient, head.parameters())]


def joined(parts):
    loss, z, weight, *scales = zip(*parts, strict=True)
    return [loss[0], torch.cat(z), torch.cat(weight), *(scale[0] for scale in scales)]


@pytest.mark.parametrize("k", [K, 2])  # with two classes on three ranks, one rank has none
def test_the_catalogue_is_that_of_one_process(ranks, k):
    every = objectives(k)
    names = list(every) if k == K else FEW
    results = ranks(len(SIZES), walk, names, k, torch.float64)
    for name in names:
        expected = in_one_process(every[name], k, torch.float64)
        for kind in KINDS:
            found = joined([result[name][kind] for result in results])
            torch.testing.assert_close(found, expected, msg=lambda text, c=(name, kind): f"{c}: {text}")


def test_float32_is_as_accurate_as_one_process(ranks):
    names = ["CE smooth", "ArcFace linear", "MVSoftmax", "raw and cosine"]
    results = ranks(len(SIZES), walk, names, K, torch.float32)
    every = objectives(K)
    for name in names:
        exact, dense = (in_one_process(every[name], K, dtype) for dtype in (torch.float64, torch.float32))
        for kind in KINDS:
            found = joined([result[name][kind] for result in results])
            for ours, theirs, truth in zip(found, dense, exact, strict=True):
                budget = 2 * (theirs - truth).abs().max() + 4e-6 * truth.abs().max()
                assert (ours - truth).abs().max() <= budget, (name, kind)


def questions(rank):
    head = sharded("ArcFace(s=8, m=0.2)")
    z = batch()[0].split(SIZES)[rank]
    return [head.cosines(z), head(z), head.predict(z), head.predict(z, top=3), head.class_margin()]


def test_predictions_logits_and_margins(ranks):
    results = ranks(len(SIZES), questions)
    head, z = single("ArcFace(s=8, m=0.2)"), batch()[0]
    expected = [head.cosines(z), head(z), head.predict(z), head.predict(z, top=3)]
    for place, right in enumerate(expected):
        torch.testing.assert_close(torch.cat([result[place] for result in results]), right)
    for result in results:
        torch.testing.assert_close(result[-1], class_margin(head.weight.detach()))


def partly_sampled(rank):
    head = sharded("CosFace(s=8, m=0.2) + 3*R_w + CE(label_smoothing=0.1)", 31, sample_rate=0.2)
    loss, of_z, of_weight = step(rank, head)
    return [loss, of_z, of_weight, (of_weight != 0).any(2).any(1)]


def test_a_sample_has_whole_classes(ranks):
    """Rows outside of the sample have no gradient, and the prototypes of a class are sampled together."""
    *_, of_weight, touched = zip(*ranks(3, partly_sampled), strict=True)
    of_weight, touched = torch.cat(of_weight), torch.cat(touched)
    assert 4 < touched.sum() < 25
    assert (of_weight[touched] != 0).any(2).all()  # R_w reaches every prototype of a sampled class


def labeled(k=K):
    labels = batch(k)[1].b.clone()
    labels[0] = -100
    return labels


def dropped(rank, k):
    head = sharded("AdaFace(s=8)", k)
    z, labels = batch(k)[0].split(SIZES)[rank], labeled(k).split(SIZES)[rank]
    new, kept = head.drop_minor_centers(z, labels, threshold=1.2)
    assert isinstance(new, ShardedPrototypeHead)
    assert new.centers == 1
    return new.weight.detach(), kept


@pytest.mark.parametrize("k", [K, 2])
def test_minor_centers_are_dropped_by_the_samples_of_all_ranks(ranks, k):
    head = single("AdaFace(s=8)", k)
    expected, right = head.drop_minor_centers(batch(k)[0], labeled(k), threshold=1.2)
    weight, kept = (torch.cat(part) for part in zip(*ranks(3, dropped, k), strict=True))
    assert torch.equal(weight, expected.weight.detach())
    assert kept.tolist() == right.tolist()


def saved(rank, path):
    torch.manual_seed(5)
    head = ShardedPrototypeHead(D, K, "CE", centers=C)
    optimizer = torch.optim.SGD(head.param_groups(lr=0.1), momentum=0.9)
    z, labels = batch(dtype=torch.float32)
    head(z.split(SIZES)[rank], part_of(rank, labels)).backward()
    optimizer.step()
    save_head(path, head, optimizer=optimizer, classes=[str(j) for j in range(K)])
    return head.weight.detach(), optimizer.state[head.weight]["momentum_buffer"]


def loaded(rank, path, names):
    head = ShardedPrototypeHead(D, len(names), "CE", centers=C)
    optimizer = torch.optim.SGD(head.param_groups(lr=0.1), momentum=0.9)
    load_head(path, head, optimizer=optimizer, classes=names)
    return head.weight.detach(), optimizer.state[head.weight]["momentum_buffer"]


def test_checkpoints_are_sharded_anew_and_matched_by_name(ranks, tmp_path):
    path = str(tmp_path / "head")
    weight, momentum = (torch.cat(part) for part in zip(*ranks(3, saved, path), strict=True))
    head = PrototypeHead(D, K, "CE", centers=C)
    optimizer = torch.optim.SGD(head.param_groups(lr=0.1), momentum=0.9)
    load_head(path, head, optimizer=optimizer)
    assert torch.equal(head.weight, weight)
    assert torch.equal(optimizer.state[head.weight]["momentum_buffer"], momentum)
    names = ["6", "new", "0", "2"]
    found, buffers = (torch.cat(part) for part in zip(*ranks(2, loaded, path, names), strict=True))
    assert torch.equal(found[[0, 2, 3]], weight[[6, 0, 2]])
    assert torch.equal(buffers[[0, 2, 3]], momentum[[6, 0, 2]])
    assert (buffers[1] == 0).all()
    norm = weight[[6, 0, 2]].norm(dim=2).mean().item()
    assert found[1].norm(dim=1).tolist() == pytest.approx([norm] * C, rel=1e-5)


def initial(rank):
    torch.manual_seed(7)
    return ShardedPrototypeHead(D, 500, "CE", centers=C).weight.detach()


def test_initial_prototypes_do_not_depend_on_the_world_size(ranks):
    two, three = torch.cat(ranks(2, initial)), torch.cat(ranks(3, initial))
    assert torch.equal(two, three)
    assert two.norm(dim=2).sub(1).abs().max() < 1e-6
    assert class_margin(two) > 0


def of_other_centers(rank):
    ShardedPrototypeHead(D, K, "CE", centers=2 + rank)(*batch(dtype=torch.float32))


def test_ranks_must_agree_on_the_centers(ranks):
    with pytest.raises(AssertionError, match="same centers: rank 0 has 2, rank 1 has 3"):
        ranks(2, of_other_centers)
