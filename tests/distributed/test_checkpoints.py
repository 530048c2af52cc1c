"""Checkpoints of heads: written and read on any number of ranks, by other classes, damaged, resumed."""

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file

from tammes import parse
from tammes.geometry.sphere import normalize
from tammes.heads import PrototypeHead, RowAdamW, RowSGD, ShardedPrototypeHead, load_head, save_head
from tammes.heads.interop import export_head

K, D = 7, 3
OPTIMIZERS = {
    "sgd": lambda weight: torch.optim.SGD([weight], lr=0.1, momentum=0.9),
    "adamw": lambda weight: torch.optim.AdamW([weight], lr=0.1),
    "rows": lambda weight: RowAdamW([weight], lr=0.1),
}
COUNTS = torch.arange(1.0, K + 1)


def plain_head(k=K, text="CosFace(s=8, m=0.2)", **options):
    return PrototypeHead(D, k, parse(text), **options)


def sharded_head(k=K, text="CosFace(s=8, m=0.2)", **options):
    return ShardedPrototypeHead(D, k, parse(text), **options)


def batch(k=K):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, D, generator=generator), torch.randint(k, (6,), generator=generator)


def stepped(head, kind):
    """An optimizer after two steps."""
    optimizer = OPTIMIZERS[kind](head.weight)
    for _ in range(2):
        optimizer.zero_grad()
        head(*batch()).backward()
        optimizer.step()
    return optimizer


def contents(head, optimizer):
    state = {name: value.clone() for name, value in optimizer.state[head.weight].items()}
    return {"weight": head.weight.detach().clone(), **state}


def start(rank, kind, path):
    torch.manual_seed(rank)
    head = sharded_head(class_counts=COUNTS)
    optimizer = stepped(head, kind)
    save_head(path, head, optimizer=optimizer)
    return contents(head, optimizer)


def pass_on(rank, kind, source, target):
    """Load on these ranks and save for others; return whether the ranks can continue."""
    torch.manual_seed(10 + rank)
    head = sharded_head(class_counts=torch.ones(K))
    optimizer = OPTIMIZERS[kind](head.weight)
    load_head(source, head, optimizer=optimizer)
    assert torch.equal(head.class_counts, COUNTS)
    found = contents(head, optimizer)
    save_head(target, head, optimizer=optimizer)
    optimizer.zero_grad()
    head(*batch()).backward()
    optimizer.step()
    return found


def joined(results):
    """The rows of all ranks; numbers are the same on each."""
    return {
        name: torch.cat([result[name] for result in results]) if first.ndim else first
        for name, first in results[0].items()
    }


@pytest.mark.parametrize("kind", ["sgd", "adamw", "rows"])
def test_rows_stay_the_same_bit_for_bit_from_3_to_2_to_1_to_4_ranks_and_to_a_plain_head(
    kind, ranks, tmp_path
):
    expected = joined(ranks(3, start, kind, str(tmp_path / "3")))
    assert len(expected["weight"].unique(dim=0)) == K
    chain = [("3", 2), ("2", 1), ("1", 4)] if kind == "sgd" else [("3", 4)]
    for source, world_size in chain:
        results = ranks(world_size, pass_on, kind, str(tmp_path / source), str(tmp_path / str(world_size)))
        found = joined(results)
        assert set(found) == set(expected)
        assert all(torch.equal(found[name], expected[name]) for name in expected)

    head = plain_head(class_counts=torch.ones(K))
    optimizer = OPTIMIZERS[kind](head.weight)
    load_head(tmp_path / "4", head, optimizer=optimizer)
    found = contents(head, optimizer)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    save_head(tmp_path / "plain", head, optimizer=optimizer)
    back = joined(ranks(2, pass_on, kind, str(tmp_path / "plain"), str(tmp_path / "back")))
    assert all(torch.equal(back[name], expected[name]) for name in expected)


def of_two_classes(rank, path):
    head = sharded_head(k=2)
    save_head(path, head)
    other = sharded_head(k=2)
    load_head(path, other)
    return torch.equal(head.weight, other.weight)


def test_ranks_without_classes_take_part(ranks, tmp_path):
    assert ranks(3, of_two_classes, str(tmp_path / "head")) == [True] * 3
    head = plain_head(k=2)
    load_head(tmp_path / "head", head)
    assert not torch.equal(head.weight[0], head.weight[1])


def resumed(rank, path, steps):
    """Train with a sampled head; a run interrupted after `steps` ends like an uninterrupted one."""
    torch.manual_seed(rank)
    head = sharded_head(k=40, text="NormFace(s=8)", sample_rate=0.2)
    optimizer = RowSGD([head.weight], lr=0.1, momentum=0.9)

    def train(head, optimizer, first, last):
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            z, labels = torch.randn(4, D, generator=generator), torch.randint(40, (4,), generator=generator)
            optimizer.zero_grad()
            head(z, labels).backward()
            optimizer.step()

    train(head, optimizer, 0, steps)
    save_head(path, head, optimizer=optimizer)
    train(head, optimizer, steps, 2 * steps)
    torch.manual_seed(100 + rank)
    other = sharded_head(k=40, text="NormFace(s=8)", sample_rate=0.2)
    state = RowSGD([other.weight], lr=0.1, momentum=0.9)
    load_head(path, other, optimizer=state)
    train(other, state, steps, 2 * steps)
    return torch.equal(head.weight, other.weight)


def test_a_sampled_run_resumes_exactly(ranks, tmp_path):
    assert ranks(2, resumed, str(tmp_path / "head"), 4) == [True] * 2


NAMES = [f"class {j}" for j in range(K)]
OTHERS = ["class 5", "new a", "class 0", "class 3", "new b"]


def by_name(rank, path):
    head = sharded_head(k=len(OTHERS))
    optimizer = torch.optim.SGD([head.weight], lr=0.1, momentum=0.9)
    load_head(path, head, optimizer=optimizer, classes=OTHERS)
    return contents(head, optimizer)


def test_rows_are_matched_by_name_and_new_ones_start_far_from_them(ranks, tmp_path):
    head = plain_head()
    head.weight.data.mul_(3)
    optimizer = stepped(head, "sgd")
    save_head(tmp_path / "head", head, optimizer=optimizer, classes=NAMES)
    before = contents(head, optimizer)

    other = plain_head(k=len(OTHERS))
    state = torch.optim.SGD([other.weight], lr=0.1, momentum=0.9)
    load_head(tmp_path / "head", other, optimizer=state, classes=OTHERS)
    for found in (contents(other, state), joined(ranks(2, by_name, str(tmp_path / "head")))):
        for new, old in {0: 5, 2: 0, 3: 3}.items():
            for name in ("weight", "momentum_buffer"):
                assert torch.equal(found[name][new], before[name][old])
        assert not found["momentum_buffer"][[1, 4]].any()
        kept = found["weight"][[0, 2, 3]]
        torch.testing.assert_close(found["weight"][[1, 4]].norm(dim=1), kept.norm(dim=1).mean().expand(2))
        cosines = normalize(found["weight"]) @ normalize(found["weight"]).T
        assert cosines[[1, 4]].masked_fill(torch.eye(5)[[1, 4]].bool(), -1).max() < 0.5


def three_files(tmp_path, ranks):
    folder = tmp_path / "head"
    ranks(3, start, "sgd", str(folder))
    return folder, sorted(folder.glob("*.safetensors"))


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def test_damaged_and_foreign_checkpoints_are_refused_with_what_was_expected(ranks, tmp_path):
    folder, files = three_files(tmp_path, ranks)
    head, whole = plain_head(), {file: file.read_bytes() for file in files}
    manifest = (folder / "head.json").read_text()

    cut(files[1])
    with pytest.raises(ValueError, match="is damaged"):
        load_head(folder, head)
    files[1].unlink()
    with pytest.raises(ValueError, match=r"Expected .* of shape \(7, 3\).*rows 3 to 5 are missing"):
        load_head(folder, head)
    files[1].write_bytes(whole[files[1]])
    load_head(folder, head)

    save_file({"weight": torch.ones(2, 2)}, files[2])
    with pytest.raises(ValueError, match=r"Expected .* of shape \(7, 3\)"):
        load_head(folder, head)
    files[2].write_bytes(whole[files[2]])

    wrong = [{"format": "other"}, {"num_classes": "7"}, {"shapes": {}}, {"shapes": {"weight": 7}}]
    texts = [json.dumps(json.loads(manifest) | changed) for changed in wrong]
    for text in (manifest[:-5], "[]", "[" * 10**5, *texts):
        (folder / "head.json").write_text(text)
        with pytest.raises(ValueError, match=r"head\.json .*Expected a folder written by .*save_head"):
            load_head(folder, head)
    with pytest.raises(FileNotFoundError, match="is not a head checkpoint"):
        load_head(tmp_path / "nothing", head)


def written_by_hand(folder, pieces, **changes):
    """A checkpoint with the given `pieces`: tensors by the index of the first row they claim to contain."""
    save_head(folder, plain_head())
    for file in folder.glob("*.safetensors"):
        file.unlink()
    for place, (first, rows) in enumerate(pieces):
        sharding = {"weight": {"saved_offsets": [first, 0]}}
        metadata = {"DCP_SHARDING_INFO": json.dumps(sharding)}
        save_file({"weight": rows}, folder / f"shard-{place}-model.safetensors", metadata)
    manifest = json.loads((folder / "head.json").read_text())
    del manifest["sha256"]  # as written before checksums
    (folder / "head.json").write_text(json.dumps(manifest | changes))
    return folder


@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 4), (2, 4), (6, 7)],
        [(0, 3), (0, 3), (6, 7)],
        [(1, 7), (6, 7)],
        [(0, 7), (0, 0), (0, 7)],
        [(0, 6)],
    ],
    ids=str,
)
def test_pieces_that_overlap_or_leave_a_gap_are_refused(ranges, tmp_path):
    pieces = [(first, torch.ones(last - first, D)) for first, last in ranges]
    folder = written_by_hand(tmp_path / "head", pieces)
    for read in (lambda: load_head(folder, plain_head()), lambda: export_head(folder, tmp_path / "w.npy")):
        with pytest.raises(
            ValueError, match=r"Expected weight of shape \(7, 3\).*(missing|in two pieces|found)"
        ):
            read()


def test_pieces_in_any_order_that_cover_all_rows_are_read(tmp_path):
    rows = torch.randn(K, D)
    folder = written_by_hand(tmp_path / "head", [(5, rows[5:]), (0, rows[:2]), (2, rows[2:5])])
    head = plain_head()
    load_head(folder, head)
    assert torch.equal(head.weight, rows)


def test_narrow_pieces_are_refused(tmp_path):
    folder = written_by_hand(tmp_path / "head", [(0, torch.ones(K, D - 1))])
    with pytest.raises(ValueError, match=r"Expected weight of shape \(7, 3\)"):
        load_head(folder, plain_head())


@pytest.mark.parametrize(("k", "d"), [(10**9, 0), (0, 3), (-7, 3), (10**9, 3), (True, 3)])
def test_manifest_sizes_without_matching_files_allocate_nothing(k, d, tmp_path):
    """A tensor of 10^9 x 0 takes no bytes in a file, but its rows' numbers would take 8 GB."""
    rows = torch.ones(max(k, 0), 0) if d == 0 else torch.ones(K, D)
    changes = {"num_classes": k, "in_features": d, "shapes": {"weight": [k, d]}}
    folder = written_by_hand(tmp_path / "head", [(0, rows)], **changes)
    with pytest.raises(ValueError, match=r"head\.json|Expected weight of shape"):
        export_head(folder, tmp_path / "out.safetensors")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("sharding", ["[]", '{"weight": {}}', '{"weight": {"saved_offsets": ["a", 0]}}', "{"])
def test_files_with_foreign_sharding_are_refused_by_name(sharding, tmp_path):
    folder = written_by_hand(tmp_path / "head", [])
    save_file({"weight": torch.ones(K, D)}, folder / "a.safetensors", {"DCP_SHARDING_INFO": sharding})
    with pytest.raises(ValueError, match=r"A file in .*head is damaged"):
        load_head(folder, plain_head())


def full_disk(*_, **__):
    raise OSError("No space left on device")


def test_a_failed_save_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("safetensors.torch.save", full_disk)
    with pytest.raises(Exception, match="No space left on device"):
        save_head(tmp_path / "head", plain_head())
    assert not list(tmp_path.iterdir())


def fails_to_write(rank, path):
    if rank == 1:
        safetensors.torch.save = full_disk
    try:
        save_head(path, sharded_head())
    except Exception as error:
        return str(error)


def test_a_rank_that_cannot_write_fails_all_and_leaves_nothing_behind(ranks, tmp_path):
    for text in ranks(2, fails_to_write, str(tmp_path / "head")):
        assert "No space left on device" in text
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_does_not_fit_says_why(tmp_path):
    head = plain_head()
    save_head(tmp_path / "head", head)
    with pytest.raises(ValueError, match=r"head has 9 classes, the checkpoint in .* has 7\..*classes="):
        load_head(tmp_path / "head", plain_head(k=9))
    with pytest.raises(ValueError, match=r"in_features=5, the checkpoint in .* has 3\."):
        load_head(tmp_path / "head", PrototypeHead(5, K, parse("CE")))
    with pytest.raises(ValueError, match="has no class names"):
        load_head(tmp_path / "head", plain_head(k=5), classes=OTHERS)
    with pytest.raises(ValueError, match=r"state of SGD, .* has no optimizer"):
        load_head(tmp_path / "head", head, optimizer=torch.optim.SGD([head.weight], lr=0.1))
    with pytest.raises(ValueError, match="does not hold the head's weight"):
        load_head(tmp_path / "head", head, optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1))
    with pytest.raises(ValueError, match="must be 7 names"):
        save_head(tmp_path / "other", head, classes=OTHERS)
    with pytest.raises(ValueError, match="'x' twice"):
        save_head(tmp_path / "other", head, classes=["x", "y", "x", "z", "u", "v", "w"])
    with pytest.raises(FileExistsError, match="already exists"):
        save_head(tmp_path / "head", head)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["head"]


def fails_together(rank, path):
    head = sharded_head()
    Path(path).mkdir(exist_ok=True)
    try:
        save_head(path, head)
    except FileExistsError as error:
        return str(error)


def test_what_goes_wrong_with_files_is_raised_on_all_ranks(ranks, tmp_path):
    for text in ranks(2, fails_together, str(tmp_path / "head")):
        assert "On rank 0:" in text
        assert "already exists" in text


def dies_while_saving(rank, path):
    head = sharded_head()
    save_head(f"{path}/first", head)
    if rank == 1:
        os._exit(9)
    save_head(f"{path}/second", head)


def test_a_rank_that_dies_leaves_the_last_checkpoint_and_no_half_of_another(ranks, tmp_path):
    with pytest.raises(AssertionError):
        ranks(2, dies_while_saving, str(tmp_path), timeout=10)
    assert not (tmp_path / "second").exists()
    load_head(tmp_path / "first", plain_head())


def test_files_are_safetensors_that_others_can_read(tmp_path):
    head = plain_head()
    save_head(tmp_path / "head", head)
    (file,) = (tmp_path / "head").glob("*.safetensors")
    assert torch.equal(load_file(file)["weight"], head.weight.detach())
