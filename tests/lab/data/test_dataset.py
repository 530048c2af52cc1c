from dataclasses import replace

import numpy as np
import pytest
import torch

from tammes.lab.data import InMemory, hold_out, standardize, stratified
from tammes.lab.data.dataset import channel_statistics, resize_and_crop


def test_a_stratified_share_is_that_share_of_every_class():
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 3 + [3] * 2 + [4])[torch.randperm(66)]
    kept, held = stratified(labels, share=0.2)
    assert torch.bincount(labels[held], minlength=5).tolist() == [10, 2, 1, 1, 0]
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(66))


def test_a_stratified_share_leaves_one_outside_and_follows_the_seed():
    labels = torch.arange(40) % 2
    assert [len(part) for part in stratified(labels, share=1.0)] == [2, 38]
    a, b, again = (stratified(labels, share=0.5, seed=s)[1].tolist() for s in (0, 1, 0))
    assert a == again == sorted(a)
    assert a != b


def test_hold_out_parts_the_training_images(made):
    parted = hold_out(made, share=0.3, seed=4)
    assert len(parted.train) + len(parted.test) == len(made.train)
    rows = torch.cat([parted.train.images, parted.test.images]).flatten(1)
    assert torch.equal(rows.unique(dim=0), made.train.images.flatten(1).unique(dim=0))
    assert parted.mean == made.mean


def test_statistics_are_those_of_numpy():
    images = np.random.default_rng(0).integers(0, 200, (31, 3, 5, 7), dtype=np.uint8)
    mean, std = channel_statistics(torch.from_numpy(images))
    assert mean == pytest.approx((images / 255).mean((0, 2, 3)).tolist())
    assert std == pytest.approx((images / 255).std((0, 2, 3)).tolist())


def test_a_constant_channel_is_not_divided_by_zero():
    images = torch.full((4, 1, 5, 5), 77, dtype=torch.uint8)
    mean, std = channel_statistics(images)
    assert standardize(images, torch.tensor(mean), torch.tensor(std)).abs().max() < 1e-6


def test_fit_covers_and_cuts_at_the_center():
    images = torch.zeros(2, 1, 10, 30, dtype=torch.uint8)
    images[:, :, :, 10:20] = 250
    assert resize_and_crop(images, (5, 5)).shape == (2, 1, 5, 5)
    assert (resize_and_crop(images, (5, 5)) == 250).all()
    assert resize_and_crop(images, (10, 30)) is images


def test_splits_and_sets_refuse_what_does_not_belong_together(made):
    images = torch.zeros(4, 3, 9, 7, dtype=torch.uint8)
    with pytest.raises((ValueError, TypeError), match="labels"):
        InMemory(images, torch.zeros(3, dtype=torch.int64))
    with pytest.raises((ValueError, TypeError), match="images"):
        InMemory(images.float(), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="made: no training image of 'd'"):
        replace(made, classes=("a", "b", "c", "d"))
    with pytest.raises(ValueError, match=r"made: labels must lie in \[0, 2\), .* got 2"):
        replace(made, classes=("a", "b"))
    with pytest.raises(ValueError, match="made: there is no test image"):
        replace(made, test=made.test.select(torch.arange(0)))
