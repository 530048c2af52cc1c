import numpy as np
import pytest
from PIL import Image

from tammes.lab.data import read_image
from tammes.lab.data.images import Unreadable, try_read

RED, GREY = (200, 40, 90), (100, 100, 100)


def grey16(value: int, dtype=np.uint16) -> Image.Image:
    return Image.fromarray(np.full((6, 6), value, dtype))


def half_transparent() -> Image.Image:
    return Image.new("RGBA", (6, 6), (0, 0, 0, 51))  # a fifth of black over white: 255 * 0.8 = 204


def palette(transparent: bool) -> Image.Image:
    image = Image.new("P", (6, 6), 1)
    image.putpalette([9, 9, 9, *RED])
    if transparent:
        image.info["transparency"] = 1
    return image


@pytest.mark.parametrize(
    ("image", "name", "expected"),
    [
        (Image.new("RGB", (6, 6), RED), "x.png", RED),
        (Image.new("L", (6, 6), 100), "x.png", GREY),
        (Image.new("1", (6, 6), 1), "x.png", (255, 255, 255)),
        (palette(transparent=False), "x.gif", RED),
        (palette(transparent=True), "x.png", (255, 255, 255)),
        (half_transparent(), "x.png", (204, 204, 204)),
        (Image.new("LA", (6, 6), (30, 0)), "x.png", (255, 255, 255)),
        (Image.new("CMYK", (6, 6), (255, 0, 255, 0)), "x.tif", (0, 255, 0)),
        (grey16(65535), "x.png", (255, 255, 255)),
        (grey16(100 * 257), "x.png", GREY),
        (grey16(255), "x.png", (1, 1, 1)),
        (grey16(100 * 257, np.int32), "x.tif", GREY),
    ],
    ids=lambda x: x.mode if isinstance(x, Image.Image) else str(x),
)
def test_every_mode_becomes_the_rgb_it_shows(image, name, expected, tmp_path):
    image.save(tmp_path / name)
    pixels = read_image(tmp_path / name, (3, 5))
    assert pixels.shape == (3, 5, 3)
    assert pixels.reshape(-1, 3).tolist() == [list(expected)] * 15


def test_one_channel_is_grey(tmp_path):
    Image.new("RGB", (6, 6), GREY).save(tmp_path / "x.png")
    assert read_image(tmp_path / "x.png", (4, 4), channels=1).tolist() == [[[100]] * 4] * 4


def test_the_largest_centered_part_is_kept(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 250
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert (read_image(tmp_path / "x.png", (10, 10)) == 250).all()


def test_the_camera_orientation_is_applied(tmp_path):
    pixels = np.zeros((8, 8), np.uint8)
    pixels[:4] = 255  # bright on top; orientation 6 says: turn clockwise, so bright on the right
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "x.png", exif=exif)
    got = read_image(tmp_path / "x.png", (8, 8))[:, :, 0]
    assert (got[:, 4:] == 255).all()
    assert (got[:, :4] == 0).all()


def test_a_large_jpeg_read_small_is_the_large_one_scaled_down(tmp_path):
    y, x = np.mgrid[0:700, 0:900]
    waves = np.stack([x / 900, y / 700, 0.5 + 0.5 * np.sin(x / 90)], -1)
    Image.fromarray((255 * waves).astype(np.uint8)).save(tmp_path / "x.jpg", quality=95)
    got = read_image(tmp_path / "x.jpg", (70, 90)).astype(float)
    expected = 255 * waves.reshape(70, 10, 90, 10, 3).mean((1, 3))
    assert np.abs(got - expected).mean() < 2


def test_what_cannot_be_read_comes_with_a_reason(tmp_path):
    good = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    good.save(tmp_path / "x.jpg")
    whole = (tmp_path / "x.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("hello")
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "float.tif")
    Image.fromarray(np.full((4, 4), -1, np.int32)).save(tmp_path / "wide.tif")
    reasons = {
        p: try_read(str(tmp_path / p), (8, 8))
        for p in ("cut.jpg", "text.png", "float.tif", "wide.tif", "none")
    }
    assert all(isinstance(reason, str) for reason in reasons.values())
    assert "truncated" in reasons["cut.jpg"]
    assert "floating-point" in reasons["float.tif"]
    assert "more than 16 bits" in reasons["wide.tif"]
    assert isinstance(try_read(str(tmp_path / "x.jpg"), (8, 8)), np.ndarray)


def test_unreadable_files_count_once_each_up_to_the_limit(caplog):
    unreadable = Unreadable(limit=2)
    for path in ("a", "a", "b", "a"):
        unreadable.note(path, "why")
    assert [record.getMessage() for record in caplog.records] == [
        "skipped unreadable image 1: a (why)",
        "skipped unreadable image 2: b (why)",
    ]
    with pytest.raises(ValueError, match=r"max_unreadable=2 .* first is a \(why\)"):
        unreadable.note("c", "why")
