import numpy as np
import pytest
import torch
from PIL import Image

from tammes.lab.data import Augmentation
from tammes.lab.data.augmentation import gather, jitter, rotate


def test_gather_mirrors_then_shifts_with_reflected_borders():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 9, 7, 3), dtype=np.uint8)
    rows = rng.integers(0, 20, 33)
    moves = Augmentation(shift=4, flip=True).moves(0, 3, rows)
    got = gather(torch.from_numpy(pixels), torch.from_numpy(rows), moves).numpy()
    for i, (row, down, right, mirrored) in enumerate(zip(rows, *moves[:3], strict=True)):
        image = pixels[row, :, ::-1] if mirrored else pixels[row]
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        expected = padded[4 - down : 13 - down, 4 - right : 11 - right]
        assert (got[i] == expected).all(), f"sample {row}, down {down}, right {right}, mirrored {mirrored}"


def test_moves_reach_every_shift_both_ways():
    moves = Augmentation(shift=2).moves(0, 0, np.arange(400))
    assert set(moves.down.tolist()) == set(moves.right.tolist()) == {-2, -1, 0, 1, 2}
    assert len(set(zip(moves.down.tolist(), moves.right.tolist(), strict=True))) == 25
    assert not moves.mirrored.any()


def test_flip_mirrors_half_of_the_set_and_the_other_half_next_time():
    flip = Augmentation(flip=True)
    odd, even = (flip.moves(7, epoch, np.arange(2000)).mirrored for epoch in (3, 4))
    assert (odd ^ even).all()
    assert 900 < odd.sum() < 1100
    other_seed = flip.moves(8, 3, np.arange(2000)).mirrored
    assert 900 < (odd ^ other_seed).sum() < 1100


def test_a_coin_of_each_epoch_mirrors_half_of_the_set_whatever_was_mirrored_before():
    coin = Augmentation(flip=True, alternate=False)
    one, two = (coin.moves(7, epoch, np.arange(2000)).mirrored for epoch in (3, 4))
    assert 900 < one.sum() < 1100
    assert 900 < (one ^ two).sum() < 1100


def test_rotation_agrees_with_pillow_and_lets_in_black():
    image = np.random.default_rng(0).integers(1, 256, (32, 32, 3), dtype=np.uint8)
    for degrees in (-20.0, -7.3, 5.0, 20.0):
        got = rotate(torch.from_numpy(image)[None], torch.tensor([np.radians(degrees)]))[0].numpy()
        expected = np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.NEAREST))
        assert (got == expected).all(2).mean() > 0.99, degrees  # ties round in different ways
        assert (got[0, 0] == 0).all() or (got[0, -1] == 0).all()


def test_jitter_agrees_with_torchvisions_adjustments_one_after_the_other():
    from torchvision.transforms import functional

    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8))
    for factors in ([1.4, 0.6, 1.3], [0.7, 1.2, 0.6], [1.0, 1.0, 1.0]):
        got = jitter(image[None], torch.tensor([factors]))[0]
        expected = image.permute(2, 0, 1).double() / 255
        for adjust, factor in zip(("brightness", "contrast", "saturation"), factors, strict=True):
            expected = getattr(functional, f"adjust_{adjust}")(expected, factor)
        off = (got.permute(2, 0, 1).double() - 255 * expected).abs()
        assert off.max() < 0.51, factors


def test_factors_reach_both_ways_and_differ():
    factors = Augmentation(jitter=0.4).factors(0, 0, np.arange(2000))
    assert 0.6 <= factors.min() < 0.61
    assert 1.39 < factors.max() <= 1.4
    assert abs(np.corrcoef(factors.T)[0, 1]) < 0.1


def test_angles_reach_both_ways_and_no_further():
    turned = Augmentation(rotate=20.0).moves(0, 0, np.arange(2000)).turned
    assert turned is not None
    assert -20 <= np.degrees(turned.min().item()) < -19
    assert 19 < np.degrees(turned.max().item()) <= 20
    assert Augmentation().moves(0, 0, np.arange(3)).turned is None


@pytest.mark.parametrize(("width", "height", "aspect"), [(100, 60, 1.0), (31, 77, 0.5), (50, 50, 2.0)])
def test_random_crops_stay_inside_and_keep_their_share_and_shape(width, height, aspect):
    crop = Augmentation(crop=0.35)
    boxes = np.array([crop.box(0, 1, i, width, height, aspect) for i in range(300)])
    left, top, right, bottom = boxes.T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (right <= width + 1e-9).all()
    assert (bottom <= height + 1e-9).all()
    whole = (right - left < width - 1e-9) & (bottom - top < height - 1e-9)  # not cut to fit
    share = ((right - left) * (bottom - top))[whole] / (width * height)
    assert share.min() >= 0.35 - 1e-9
    turn = ((right - left) / (bottom - top))[whole] / aspect
    assert turn.min() >= 3 / 4 - 1e-9
    assert turn.max() <= 4 / 3 + 1e-9
    assert len({tuple(box) for box in boxes.tolist()}) == 300


def test_without_crop_the_center_is_kept():
    assert Augmentation().box(0, 0, 5, 31, 77, 0.5) == pytest.approx((0, 7.5, 31, 69.5))


def test_augmentation_refuses_a_negative_shift_and_an_empty_crop():
    with pytest.raises(ValueError, match="shift must be at least 0, got -1"):
        Augmentation(shift=-1)
    with pytest.raises(ValueError, match=r"crop must lie in .* fraction of the area"):
        Augmentation(crop=0.0)
