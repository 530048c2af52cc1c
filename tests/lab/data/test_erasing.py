import numpy as np
import pytest
import torch

from tammes.lab.data import Augmentation, Batches
from tammes.lab.data.augmentation import Moves, gather


def erased(augmentation: Augmentation, n: int = 2000, size: tuple[int, int] = (128, 64)) -> np.ndarray:
    return augmentation.erased(0, 0, np.arange(n), *size).numpy()


def test_what_is_erased_is_one_rectangle_of_the_stated_sizes():
    masks = erased(Augmentation(erase=1.0))
    shares = masks.mean((1, 2))
    assert shares.min() > 0.015
    assert shares.max() < 0.41
    for mask in masks:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        assert mask.sum() == len(rows) * len(columns)
        assert np.ptp(rows) + 1 == len(rows)
        assert np.ptp(columns) + 1 == len(columns)
    heights, widths = masks.any(2).sum(1), masks.any(1).sum(1)
    large = heights * widths > 100  # where rounding to pixels hardly matters
    assert (heights / widths)[large].min() > 0.27
    assert (heights / widths)[large].max() < 3.6


def test_areas_and_places_are_spread_evenly():
    masks = erased(Augmentation(erase=1.0), 4000)
    assert masks.mean((1, 2)).mean() == pytest.approx((0.02 + 0.4) / 2, abs=0.01)
    once = masks.mean(0)
    np.testing.assert_allclose(once, once[::-1, ::-1], atol=0.06)


def test_so_many_images_are_erased_as_chance_says():
    touched = erased(Augmentation(erase=0.3), 5000).any((1, 2))
    assert touched.mean() == pytest.approx(0.3, abs=0.03)
    assert not erased(Augmentation(), 50).any()


def test_erasing_follows_the_sample_not_the_batch():
    augmentation = Augmentation(erase=0.5)
    whole = augmentation.erased(3, 7, np.arange(40), 20, 10)
    assert torch.equal(augmentation.erased(3, 7, np.array([31, 4]), 20, 10), whole[[31, 4]])
    assert not torch.equal(augmentation.erased(3, 8, np.arange(40), 20, 10), whole)


def test_erased_pixels_have_the_mean_color(made):
    from dataclasses import replace

    for border in ("reflected", "black"):
        plain = replace(made, augmentation=Augmentation(shift=2, flip=True, border=border))
        erasing = replace(made, augmentation=Augmentation(shift=2, flip=True, border=border, erase=1.0))
        one, other = (next(Batches(data, batch_size=37, training=True).epoch(2)) for data in (plain, erasing))
        mask = erasing.augmentation.erased(0, 2, one.indices.numpy(), 9, 7)[:, None].expand_as(one.images)
        assert mask.any()
        assert (other.images[mask] == 0).all()
        assert torch.equal(other.images[~mask], one.images[~mask])


def test_black_borders_are_what_padding_and_cropping_gives():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(1, 256, (5, 9, 7, 3), dtype=torch.uint8, generator=generator)
    down, right = torch.tensor([-2, 0, 1, 2, 2]), torch.tensor([1, -2, 0, 2, -1])
    mirrored = torch.tensor([True, False, True, False, True])
    moved = gather(pixels, torch.arange(5), Moves(down, right, mirrored), black=True)
    for i in range(5):
        image = pixels[i].flip(1) if mirrored[i] else pixels[i]
        padded = torch.nn.functional.pad(image, (0, 0, 2, 2, 2, 2))
        top, left = 2 - down[i], 2 - right[i]
        assert torch.equal(moved[i], padded[top : top + 9, left : left + 7])


def test_bad_settings_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"erase must lie in \[0, 1\], got 1.5. It is a probability"):
        Augmentation(erase=1.5)
    with pytest.raises(ValueError, match="border must be one of"):
        Augmentation(border="white")  # type: ignore
