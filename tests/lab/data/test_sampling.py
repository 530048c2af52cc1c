"""Which samples an epoch draws, and how often."""

import numpy as np
import pytest
import torch

from tammes.lab.data import Batches, DataSet, InMemory
from tammes.lab.data.batches import balanced, shuffled

LABELS = np.repeat(np.arange(4), [50, 13, 6, 1])


def test_shuffled_draws_each_sample_once():
    order = shuffled(LABELS, 3, 1)
    assert sorted(order) == list(range(len(LABELS)))


@pytest.mark.parametrize("epoch", range(4))
def test_balanced_draws_each_class_equally_often(epoch):
    drawn = LABELS[balanced(LABELS, 0, epoch) % len(LABELS)]
    counts = np.bincount(drawn, minlength=4)
    assert len(drawn) == len(LABELS)
    assert counts.max() - counts.min() <= 1


def test_over_epochs_the_remainder_goes_round():
    total = sum(np.bincount(LABELS[balanced(LABELS, 0, e) % len(LABELS)], minlength=4) for e in range(4))
    assert total.tolist() == [len(LABELS)] * 4


def test_balanced_goes_through_a_class_before_it_repeats():
    """17 or 18 draws of the class of 13 show every sample once or twice."""
    for epoch in range(5):
        times = np.bincount(balanced(LABELS, 7, epoch) % len(LABELS), minlength=len(LABELS))
        for label in range(4):
            assert np.ptp(times[label == LABELS]) <= 1


def test_a_large_class_shows_other_samples_in_other_epochs():
    seen = [set(balanced(LABELS, 0, e)[LABELS[balanced(LABELS, 0, e) % 70] == 0]) for e in range(2)]
    assert seen[0] != seen[1]


def test_draws_of_one_sample_are_distinct_and_mixed_over_the_epoch():
    order = balanced(LABELS, 0, 0)
    assert len(set(order.tolist())) == len(order)
    labels = LABELS[order % len(LABELS)]
    assert (np.diff(labels) != 0).mean() > 0.5  # sorted by class it would be 3 of 69


def test_seeds_and_epochs_differ_and_repeat_themselves():
    first = balanced(LABELS, 0, 0)
    assert np.array_equal(first, balanced(LABELS, 0, 0))
    assert not np.array_equal(first, balanced(LABELS, 1, 0))
    assert not np.array_equal(first, balanced(LABELS, 0, 1))


def test_an_unknown_sampling_is_refused(made):
    with pytest.raises(ValueError, match="sampling must be one of 'shuffled', 'balanced', 'identities'"):
        Batches(made, batch_size=4, training=True, sampling="sorted")


def imbalanced(made: DataSet) -> DataSet:
    labels = torch.tensor([0] * 30 + [1] * 5 + [2] * 2)
    return DataSet(**vars(made) | {"train": InMemory(made.train.images, labels)})


def test_batches_of_ranks_and_a_resumed_epoch_are_those_of_one_process(made):
    loader = Batches(imbalanced(made), batch_size=5, training=True, sampling="balanced")
    whole = list(loader.epoch(2))
    assert len(whole) == len(loader)
    for batch, *parts in zip(whole, *(loader.epoch(2, rank=r, world_size=2) for r in range(2)), strict=True):
        for joined, expected in zip(zip(*parts, strict=True), batch, strict=True):
            assert torch.equal(torch.cat(joined), expected)
    for got, expected in zip(loader.epoch(2, start=3), whole[3:], strict=True):
        assert all(map(torch.equal, got, expected))


def test_a_sample_drawn_again_in_an_epoch_is_augmented_anew(made):
    """The class of two images is drawn twelve times; two images in one look each would be two pictures."""
    loader = Batches(imbalanced(made), batch_size=37, training=True, sampling="balanced")
    (batch,) = loader.epoch(0)
    rare = batch.images[batch.labels == 2]
    assert set(batch.indices[batch.labels == 2].tolist()) == {35, 36}
    assert len({image.numpy().tobytes() for image in rare}) > 4
    assert torch.equal(batch.labels, loader.labels[batch.indices])
