from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tammes.lab.data import Augmentation, Batches, DataSet, load


def by_index(batches: Batches, epoch: int = 0, **part: int) -> dict[int, torch.Tensor]:
    """Every image of an epoch (or of a part of it) at its index."""
    found = {}
    for images, _, indices in batches.epoch(epoch, **part):
        found |= dict(zip(indices.tolist(), images, strict=True))
    return found


def same(a: dict[int, torch.Tensor], b: dict[int, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[i], b[i]) for i in a)


@pytest.fixture(params=["in memory", "on disk"])
def dataset(request, made, photos) -> DataSet:
    if request.param == "in memory":
        return made
    on_disk = load(photos, memory_limit=0)
    return replace(on_disk, augmentation=Augmentation(shift=1, flip=True, crop=0.5))


def batches(dataset: DataSet, batch_size: int, *, training: bool = True, **more) -> Batches:
    return Batches(dataset, "train", batch_size=batch_size, training=training, workers=0, **more)


def test_an_epoch_visits_every_sample_once_with_its_label(dataset):
    loader = batches(dataset, 5)
    steps = list(loader.epoch(0))
    indices = torch.cat([b.indices for b in steps])
    assert len(steps) == len(loader)
    assert sorted(indices.tolist()) == list(range(len(dataset.train)))
    assert torch.equal(torch.cat([b.labels for b in steps]), dataset.train.labels[indices])
    assert indices.tolist() != sorted(indices.tolist())


def test_a_sample_looks_the_same_whatever_the_batch_size(dataset):
    assert same(by_index(batches(dataset, 1), 2), by_index(batches(dataset, 9), 2))


def test_ranks_joined_in_order_are_the_global_batch(dataset):
    loader = batches(dataset, 5)
    ranks = [list(loader.epoch(1, rank=r, world_size=3)) for r in range(3)]
    whole = list(loader.epoch(1))
    assert [len(r) for r in ranks] == [len(whole)] * 3
    for parts, batch in zip(zip(*ranks, strict=True), whole, strict=True):
        for joined, expected in zip(zip(*parts, strict=True), batch, strict=True):
            assert torch.equal(torch.cat(joined), expected)
        assert max(map(len, [p.labels for p in parts])) - min(len(p.labels) for p in parts) <= 1


def test_an_epoch_resumes_at_any_step(dataset):
    loader = batches(dataset, 4)
    whole = list(loader.epoch(3))
    for start in (0, 2, len(whole)):
        rest = list(batches(dataset, 4).epoch(3, start=start))
        assert len(rest) == len(whole) - start
        for got, expected in zip(rest, whole[start:], strict=True):
            assert all(map(torch.equal, got, expected))


def test_epochs_and_seeds_differ_in_order_and_looks(dataset):
    loader = batches(dataset, 100)
    (first,), (second,) = loader.epoch(0), loader.epoch(1)
    (other,) = batches(dataset, 100, seed=1).epoch(0)
    for changed in (second, other):
        assert not torch.equal(first.indices, changed.indices)
        assert not same(dict(zip(first.indices.tolist(), first.images, strict=True)),
                        dict(zip(changed.indices.tolist(), changed.images, strict=True)))  # fmt: skip


def test_evaluation_is_in_order_plain_and_normalized(made):
    (batch,) = Batches(made, "test", batch_size=11, training=False).epoch(0)
    mean, std = (np.array(x).reshape(1, 3, 1, 1) for x in (made.mean, made.std))
    expected = (made.test.images.numpy() / 255 - mean) / std
    assert batch.indices.tolist() == list(range(11))
    assert batch.images.numpy() == pytest.approx(expected, abs=1e-6)
    assert batch.images.dtype == torch.float32


def test_training_images_have_mean_0_and_deviation_1(made):
    plain = torch.stack(list(by_index(batches(made, 8, training=False)).values())).double()
    assert plain.mean((0, 2, 3)).tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    assert plain.std((0, 2, 3), correction=0).tolist() == pytest.approx([1.0] * 3, abs=1e-6)


def test_images_are_channels_last(dataset):
    batch = next(batches(dataset, 4).epoch(0))
    assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_drop_last_leaves_out_the_small_batch_only(made):
    assert [len(b.labels) for b in batches(made, 10).epoch(0)] == [10, 10, 10, 7]
    assert [len(b.labels) for b in batches(made, 10, drop_last=True).epoch(0)] == [10, 10, 10]
    assert len(batches(made, 37, drop_last=True)) == 1


def test_the_global_random_state_is_left_alone(dataset):
    state = torch.get_rng_state()
    list(batches(dataset, 8).epoch(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_worker_processes_change_nothing(photos):
    dataset = load(photos, memory_limit=0)
    with_workers = Batches(dataset, "train", batch_size=4, training=True, workers=2)
    assert same(by_index(with_workers, 1), by_index(batches(dataset, 7), 1))


def test_files_on_disk_give_the_bytes_that_memory_holds(photos):
    held, on_disk = load(photos), load(photos, memory_limit=0)
    alike = replace(on_disk, mean=held.mean, std=held.std)
    assert same(by_index(batches(held, 6, training=False)), by_index(batches(alike, 6, training=False)))


def test_unreadable_files_are_skipped_named_and_limited(photos, caplog):
    dataset = load(photos, memory_limit=0, max_unreadable=1)
    broken = dataset.train.paths[3]
    Path(broken).write_bytes(b"no image")
    loader = batches(dataset, 4)
    for epoch in (0, 1):  # the same file counts once
        assert set(by_index(loader, epoch)) == set(range(len(dataset.train))) - {3}
    (record,) = caplog.records
    assert broken in record.getMessage()
    Path(dataset.train.paths[5]).write_bytes(b"")
    with pytest.raises(ValueError, match=rf"More than max_unreadable=1 images .* first is {broken}"):
        list(loader.epoch(0))


def test_a_batch_without_a_readable_file_is_empty(photos):
    dataset = load(photos, memory_limit=0)
    Path(dataset.train.paths[0]).write_bytes(b"no image")
    first = next(batches(dataset, 1, training=False).epoch(0))
    assert first.images.shape == (0, 3, 12, 8)
    assert len(first.labels) == len(first.indices) == 0


def test_batches_refuse_what_cannot_be(made):
    loader = batches(made, 4)
    with pytest.raises(ValueError, match=r"rank must lie in \[0, world_size\), got rank=2, world_size=2"):
        loader.epoch(0, rank=2, world_size=2)
    with pytest.raises(ValueError, match=r"batch_size=4 is the global batch .* world_size=5"):
        loader.epoch(0, world_size=5)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        batches(made, 0)
    with pytest.raises(ValueError, match="shift must be less than the image side of 7 pixels, got 7"):
        batches(replace(made, augmentation=Augmentation(shift=7)), 4)
    with pytest.raises(ValueError, match=r"crop=0.5 needs images read from disk.*memory_limit=0"):
        batches(replace(made, augmentation=Augmentation(crop=0.5)), 4)
