"""The sharded head apart from the loss: classes, predictions, conventions, bytes sent."""

import copy
from itertools import islice

import pytest
import torch
import torch.distributed as dist

from tammes import parse
from tammes.geometry.margins import class_margin
from tammes.heads import PrototypeHead, ShardedPrototypeHead, clip_grad_norm_, load_head, save_head
from tammes.heads._ranks import collectives
from tammes.losses import MixedLabels

D, SIZES = 5, [4, 0, 7]


def local(rank, *tensors):
    return [tensor.split(SIZES)[rank] for tensor in tensors]


def batch(k):
    torch.manual_seed(1)
    return torch.randn(11, D, dtype=torch.float64), torch.randint(k, (11,))


def prototypes(k):
    """Some of which coincide, so that there are ties within and across ranks."""
    torch.manual_seed(2)
    weight = torch.randn(k, D, dtype=torch.float64)
    if k > 2:
        weight[k - 1], weight[k // 2] = weight[0], weight[1]
    return weight


def twins(k):
    """For each class the first with the same prototype.

    Their cosines are equal but for rounding, which on some processors is another one where a rank has a
    single class and its product is a matrix times a vector.
    """
    first = torch.arange(k)
    if k > 2:
        first[k - 1], first[k // 2] = 0, 1
    return first


def head_with(weight, text="CosFace(s=8, m=0.2)", **options):
    head = ShardedPrototypeHead(D, len(weight), parse(text), dtype=weight.dtype, **options)
    head.weight.data.copy_(weight[slice(*head.class_range)])
    return head


def alone(weight, text="CosFace(s=8, m=0.2)"):
    head = PrototypeHead(D, len(weight), parse(text), dtype=weight.dtype, block_size=None)
    head.weight.data.copy_(weight)
    return head


def answers(rank, k):
    head = head_with(prototypes(k))
    (z,) = local(rank, batch(k)[0])
    spread = torch.randn(k, D, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return {
        "range": head.class_range,
        "logits": head(z).detach(),
        "cosines": head.cosines(z).detach(),
        "first": head.predict(z),
        "best": head.predict(z, top=2 if k == 2 else 5),
        "margin of twins": head.class_margin(),
        "margin": head_with(spread).class_margin(),
        "spread": spread,
    }


@pytest.mark.parametrize("k", [2, 7, 13])
def test_logits_predictions_and_margin_are_those_of_all_classes(k, ranks):
    results = ranks(3, answers, k)
    head, z = alone(prototypes(k)), batch(k)[0]
    chunks = torch.arange(k).chunk(3)
    for rank, result in enumerate(results):
        own = chunks[rank].tolist() if rank < len(chunks) else []
        assert list(range(*result["range"])) == own
        torch.testing.assert_close(result["logits"], local(rank, head(z))[0].detach())
        torch.testing.assert_close(result["cosines"], local(rank, head.cosines(z))[0].detach())
        assert torch.equal(twins(k)[result["first"]], twins(k)[local(rank, head.predict(z))[0]])
        best = local(rank, head.predict(z, top=2 if k == 2 else 5))[0]
        assert torch.equal(twins(k)[result["best"]], twins(k)[best])
        assert (result["margin of twins"] == 0) == (k > 2)
        assert result["margin"] == class_margin(result["spread"])


def conventions(rank):
    """Gradients by three ways in which ranks may differ: upstream factors, own rows, logits."""
    z_all, labels_all = batch(7)
    z, labels = local(rank, z_all, labels_all)
    found = {}
    for name in ("factors", "rows", "logits"):
        head, own = head_with(prototypes(7)), z.clone().requires_grad_()
        if name == "factors":
            ((rank + 1) * head(own, labels)).backward()
        elif name == "rows":
            (head(own, labels, reduction="none") * local(rank, rows_weight())[0]).sum().backward()
        else:
            (head.logits(own) * local(rank, logits_weight())[0]).sum().backward()
        found[name] = own.grad, head.weight.grad
    return found


def rows_weight():
    return torch.linspace(0.5, 3, 11, dtype=torch.float64)


def logits_weight():
    return torch.linspace(-1, 2, 77, dtype=torch.float64).view(11, 7)


def test_what_is_minimized_is_the_mean_over_ranks_of_what_each_rank_differentiates(ranks):
    results = ranks(3, conventions)
    for name in ("factors", "rows", "logits"):
        head, (z, labels) = alone(prototypes(7)), batch(7)
        z = z.requires_grad_()
        if name == "factors":
            minimized = (1 + 2 + 3) / 3 * head(z, labels)
        elif name == "rows":
            minimized = (head(z, labels, reduction="none") * rows_weight()).sum() / 3
        else:
            minimized = (head.logits(z) * logits_weight()).sum() / 3
        minimized.backward()
        torch.testing.assert_close(torch.cat([r[name][0] for r in results]), 3 * z.grad)
        torch.testing.assert_close(torch.cat([r[name][1] for r in results]), head.weight.grad)


def axes():
    """Prototypes along the axes, some twice, and samples between them: ties that rounding does not break."""
    weight = torch.eye(D, dtype=torch.float64)[[0, 1, 2, 0, 3, 1, 4, 2]]
    z = torch.tensor(
        [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 0, 0], [2, 0, 0, 0, 2]], dtype=torch.float64
    )
    return weight, z, torch.tensor([5, 2, 7, 6])


def at_ties(rank, one_message):
    collectives.ONE_MESSAGE = one_message
    weight, z, labels = axes()
    head = head_with(weight, "R_sm + CosFace(s=8, m=0.2)")
    head(z.tensor_split(3)[rank], labels.tensor_split(3)[rank]).backward()
    return head.weight.grad, head.terms["accuracy"]


@pytest.mark.parametrize("one_message", [8, 1], ids=["few ranks", "many"])
def test_ties_across_ranks_go_to_the_lowest_class(one_message, ranks):
    results = ranks(3, at_ties, one_message)
    weight, z, labels = axes()
    head = alone(weight, "R_sm + CosFace(s=8, m=0.2)")
    head(z, labels).backward()
    torch.testing.assert_close(torch.cat([grad for grad, _ in results]), head.weight.grad)
    assert [accuracy for _, accuracy in results] == [head.terms["accuracy"]] * 3
    assert 0 < head.terms["accuracy"] < 1


CALLS = 4  # with each form of batch: the third and later ones are sent ahead


def batches_of_many_forms():
    """Embeddings, labels and the sizes of the ranks' parts."""
    z, labels = batch(7)
    mixed = MixedLabels(labels, labels.flip(0), torch.linspace(0, 1, 11, dtype=torch.float64))
    few = z[:4], labels[:4], [3, 1, 0]
    ignored = z, torch.where(torch.arange(11) == 5, -100, labels), SIZES
    return [(z, labels, SIZES), few, (z, mixed, SIZES), ignored, (z.float(), labels, SIZES), few]


def own_part(rank, labels, sizes):
    parts = [x.split(sizes)[rank] for x in (labels if isinstance(labels, MixedLabels) else [labels])]
    return MixedLabels(*parts) if len(parts) > 1 else parts[0]


def calls_of_many_forms(rank):
    """Results of each call, and how often it gathered; each form ends with a bad label on one rank."""
    gathers, gather = [0], dist.all_gather_into_tensor

    def counting(*arguments, **options):
        gathers[0] += 1
        return gather(*arguments, **options)

    dist.all_gather_into_tensor = counting
    head, results = head_with(prototypes(7)), []
    for z_all, labels, sizes in batches_of_many_forms():
        z = z_all.split(sizes)[rank].clone().requires_grad_()
        for _ in range(CALLS):
            head.weight.grad = z.grad = None
            gathers[0] = 0
            loss = head(z, own_part(rank, labels, sizes))
            counted = gathers[0]
            loss.backward()
            results.append((counted, loss.detach(), z.grad, head.weight.grad))
        with pytest.raises(ValueError, match="On rank 2: labels must lie in"):
            head(z, own_part(rank, labels, sizes) if rank < 2 else torch.tensor([7]))
        results += [head.predict(z) for _ in range(CALLS)]
    return results


def test_batches_sent_ahead_give_the_same_results_in_fewer_messages(ranks):
    results = zip(*ranks(3, calls_of_many_forms), strict=True)
    head = alone(prototypes(7))
    for z_all, labels, _ in batches_of_many_forms():
        head.weight.grad, z = None, z_all.clone().requires_grad_()
        loss = head(z, labels)
        loss.backward()
        gathers = []
        for parts in islice(results, CALLS):
            counted, losses, of_z, of_weight = zip(*parts, strict=True)
            gathers.append(set(counted))
            torch.testing.assert_close(torch.stack(losses), loss.detach().expand(3))
            torch.testing.assert_close(torch.cat(of_z), 3 * z.grad)
            torch.testing.assert_close(torch.cat(of_weight), head.weight.grad)
        assert gathers == [{3}, {3}, {2}, {2}]
        for best in islice(results, CALLS):
            assert torch.equal(twins(7)[torch.cat(best)], twins(7)[head.predict(z)])


def mixed_company(rank):
    """One rank has half-precision embeddings, another has embeddings without gradients."""
    z_all, labels_all = batch(7)
    z, labels = local(rank, z_all.bfloat16().double(), labels_all)
    z = z.bfloat16() if rank == 0 else z.float()
    z = z.requires_grad_(rank != 2)
    head = copy.deepcopy(head_with(prototypes(7).float()))
    head(z, labels).backward()
    return head.weight.grad.double(), None if z.grad is None else z.grad.double()


def test_ranks_may_bring_different_dtypes_and_embeddings_without_gradient(ranks):
    results = ranks(3, mixed_company)
    head, (z, labels) = alone(prototypes(7).float().double()), batch(7)
    z = z.bfloat16().double().requires_grad_()
    head(z, labels).backward()
    torch.testing.assert_close(
        torch.cat([weight for weight, _ in results]), head.weight.grad, rtol=1e-5, atol=1e-7
    )
    torch.testing.assert_close(results[0][1], 3 * z.grad[:4], rtol=1e-2, atol=1e-4)
    assert results[2][1] is None


def in_a_group_of_two(rank, path):
    """The last two of three ranks share the classes; the first is not in their group."""
    group = dist.new_group([1, 2])
    found = None if rank == 0 else step_and_checkpoint(rank, path, group)
    dist.barrier()  # the first rank keeps the store, which the others still need to connect
    return found


def step_and_checkpoint(rank, path, group):
    head = head_with(prototypes(7), "CosFace(s=8, m=0.2) + MHE", process_group=group)
    z, labels = (x.split([3, 8])[rank - 1] for x in batch(7))
    head(z, labels).backward()
    norm = clip_grad_norm_(head.parameters(), 1e9)
    save_head(path, head)
    other = head_with(0 * prototypes(7), process_group=group)
    load_head(path, other)
    assert torch.equal(other.weight, head.weight)
    return head.weight.grad, norm, head.class_margin()


def test_a_group_of_some_ranks_works_as_all_do(ranks, tmp_path):
    weight = prototypes(7)
    head = alone(weight, "CosFace(s=8, m=0.2) + MHE")
    head(*batch(7)).backward()
    _, *results = ranks(3, in_a_group_of_two, str(tmp_path / "head"))
    torch.testing.assert_close(torch.cat([grad for grad, _, _ in results]), head.weight.grad)
    for _, norm, margin in results:
        assert norm.item() == pytest.approx(head.weight.grad.norm().item())
        assert margin == head.class_margin()


def first_rows(rank, seeds):
    torch.manual_seed(seeds[rank])
    return ShardedPrototypeHead(D, 2500, parse("CosFace(s=16, m=0.2)")).weight.detach()


def test_random_prototypes_follow_the_seed_and_not_the_number_of_ranks(ranks):
    two, three = (torch.cat(ranks(world, first_rows, [7] * world)) for world in (2, 3))
    assert torch.equal(two, three)
    assert len(two.unique(dim=0)) == 2500
    other = torch.cat(ranks(2, first_rows, [8, 9]))
    assert len(torch.cat([two, other]).unique(dim=0)) == 5000


def bytes_of_a_step(rank, ks):
    """Bytes that this rank hands to collectives in a step, by number of classes."""
    sent = [0]

    def counting(function, tensors):
        def counted(*arguments, **options):
            sent[0] += sum(arguments[place].nbytes for place in tensors)
            return function(*arguments, **options)

        return counted

    for name, tensors in {"all_gather_into_tensor": [1], "all_reduce": [0], "all_to_all_single": [1]}.items():
        setattr(dist, name, counting(getattr(dist, name), tensors))
    found = []
    for k in ks:
        head = ShardedPrototypeHead(D, k, parse("CosFace(s=32, m=0.2) + 0.5*R_sm + 100*R_w + CE"))
        z, labels = (x.split([5, 6])[rank] for x in batch(k))
        head(z.float().requires_grad_(), labels).backward()
        sent[0] = 0
        head(z.float().requires_grad_(), labels).backward()
        found.append(sent[0])
    return found


def test_what_is_sent_in_a_step_does_not_grow_with_the_number_of_classes(ranks):
    for sent in ranks(2, bytes_of_a_step, [4, 70, 70_000]):
        assert len(set(sent)) == 1
        assert sent[0] > 0


class SlowWork(dist.Work):
    """A collective that counts how often it was asked, and is complete after some questions."""

    def __init__(self, questions):
        super().__init__()
        self.left, self.asked, self.waited = questions, 0, 0

    def is_completed(self):
        self.asked += 1
        return self.asked > self.left

    def wait(self):
        self.waited += 1


@pytest.mark.parametrize(("questions", "asked"), [(0, 1), (3, 4)])
def test_a_wait_polls_until_the_collective_is_complete_and_then_hears_of_its_errors(
    questions, asked, monkeypatch
):
    monkeypatch.setattr(collectives.time, "perf_counter", lambda: 0.0)
    work = SlowWork(questions)
    collectives._wait(work, torch.zeros(1))
    assert (work.asked, work.waited) == (asked, 1)


def test_a_wait_stops_polling_after_a_while_and_never_starts_on_other_devices(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(collectives.time, "perf_counter", lambda: collectives.POLL_SECONDS * next(ticks) / 4)
    work = SlowWork(questions=1000)
    collectives._wait(work, torch.zeros(1))
    assert (work.asked, work.waited) == (4, 1)
    elsewhere = SlowWork(questions=1000)
    collectives._wait(elsewhere, torch.zeros(1, device="meta"))
    assert (elsewhere.asked, elsewhere.waited) == (0, 1)
