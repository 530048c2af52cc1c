"""Running statistics of losses live in the head: updated once a step, kept in eval, saved, never rounded."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tammes import PrototypeHead, load_head, parse, save_head

D, K, N = 4, 5, 8
TEXT = "AdaFace(s=8, momentum=0.5) + CurricularFace(s=8, momentum=0.5)"
pytestmark = pytest.mark.filterwarnings("ignore:.*classes:UserWarning")


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(N, D, generator=generator)
    return z.requires_grad_(), torch.randint(K, (N,), generator=generator)


def head_of(text=TEXT, **options):
    torch.manual_seed(0)
    return PrototypeHead(D, K, parse(text), **options)


def statistics(head):
    buffers = {} if head.running is None else dict(head.running.named_buffers())
    return {name: buffer.item() for name, buffer in buffers.items()}


def targets_of(head, z, labels):
    return head.cosines(z).gather(1, labels[:, None]).squeeze(1)


def test_a_step_includes_its_batch_and_eval_does_not():
    head, (z, labels) = head_of(), batch()
    labels[2] = -100  # an ignored row has no part in them
    kept = labels != -100
    norms, cosines = z.norm(dim=1)[kept], targets_of(head, z[kept], labels[kept])
    head(z, labels)
    expected = {
        "AdaFace_mean": 10 + norms.mean().item() / 2,
        "AdaFace_std": 50 + norms.std().item() / 2,
        "CurricularFace_t": cosines.mean().item() / 2,
    }
    assert statistics(head) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    loss = head.eval()(z, labels)
    assert torch.equal(head(z, labels), loss)
    assert statistics(head) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_batch_without_kept_rows_or_with_a_single_one_leaves_no_nan():
    head, (z, labels) = head_of(), batch()
    head(z, torch.full_like(labels, -100))
    assert statistics(head) == {"AdaFace_mean": 20, "AdaFace_std": 100, "CurricularFace_t": 0}
    assert head(z[:1], labels[:1]).isfinite()
    assert statistics(head)["AdaFace_std"] == 100


def test_recomputation_uses_what_the_forward_used_and_does_not_count_twice():
    z, labels = batch()
    for text in (TEXT, "ElasticFace(s=8, std=0.2)", "ElasticFace(s=8) + " + TEXT):
        for reentrant in (False, True):
            plain, again = head_of(text), head_of(text)
            torch.manual_seed(1)
            expected = torch.autograd.grad(plain(z, labels), (z, plain.weight))
            torch.manual_seed(1)
            z.grad = None
            checkpoint(again, z, labels, use_reentrant=reentrant).backward()
            torch.testing.assert_close([z.grad, again.weight.grad], list(expected))
            assert statistics(again) == statistics(plain)


def test_recomputation_without_the_random_state_is_refused():
    head, (z, labels) = head_of(), batch()
    loss = checkpoint(head, z, labels, use_reentrant=False, preserve_rng_state=False)
    with pytest.raises(RuntimeError, match="preserve_rng_state=True"):
        loss.backward()


def test_random_margins_follow_the_seed_and_are_the_mean_in_eval():
    z, labels = batch()
    head = head_of("ElasticFace(s=8, m=0.3, std=0.2)")
    torch.manual_seed(3)
    first, second = head(z, labels), head(z, labels)
    assert first != second
    torch.manual_seed(3)
    head.running.reset()
    assert head(z, labels) == first
    torch.testing.assert_close(head.eval()(z, labels), head_of("ArcFace(s=8, m=0.3)")(z, labels))


def test_state_dicts_checkpoints_and_copies_carry_them(tmp_path):
    head, (z, labels) = head_of(), batch()
    head(z, labels)
    stored = head.state_dict()
    assert {name for name in stored if name.startswith("running.")} == {
        "running.AdaFace_mean",
        "running.AdaFace_std",
        "running.CurricularFace_t",
    }
    loaded, from_folder = head_of(), head_of()
    loaded.load_state_dict(stored)
    save_head(tmp_path / "head", head)
    load_head(tmp_path / "head", from_folder)
    for other in (loaded, from_folder, copy.deepcopy(head)):
        assert statistics(other) == statistics(head)
    plain = head_of("ArcFace(s=8, m=0.2)")
    assert not [name for name in plain.state_dict() if "running" in name]
    loaded.load_state_dict(plain.state_dict())  # fine-tuning from another loss keeps them
    assert statistics(loaded) == statistics(head)


def test_a_margin_that_changes_keeps_them_and_another_loss_drops_them():
    head, (z, labels) = head_of(), batch()
    head(z, labels)
    before = statistics(head)
    head.objective = TEXT.replace("momentum", "m=0.1, momentum")
    assert statistics(head) == before
    head.objective = "CE"
    assert statistics(head) == {}


def test_half_precision_and_the_meta_device_do_not_lose_them():
    head, (z, labels) = head_of(), batch()
    head(z, labels)
    before = statistics(head)
    assert statistics(head.half()) == before
    assert {buffer.dtype for buffer in head.running.buffers()} == {torch.float32}
    assert statistics(head.to("meta").to_empty(device="cpu")) == before
    fresh = PrototypeHead(D, K, parse(TEXT), device="meta").to_empty(device="cpu")
    assert statistics(fresh) == {"AdaFace_mean": 20, "AdaFace_std": 100, "CurricularFace_t": 0}


def test_torch_func_leaves_them_alone():
    head, (z, labels) = head_of(), batch()
    before = statistics(head)
    torch.func.grad(lambda q: head(q, labels))(z.detach())
    assert statistics(head) == before
