import numpy as np
import pytest

from tammes.lab.data import load
from tammes.lab.data.arrays import read_arrays


def arrays(**changed: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (13, 8, 10, 3), dtype=np.uint8),
        "y_train": np.arange(13) % 3,
        "x_test": rng.integers(0, 256, (5, 8, 10, 3), dtype=np.uint8),
        "y_test": np.arange(5) % 3,
    } | changed


@pytest.fixture
def saved(tmp_path):
    def save(**changed: np.ndarray):
        np.savez(tmp_path / "set.npz", **arrays(**changed))
        return tmp_path / "set.npz"

    return save


def test_images_and_labels_come_back(saved):
    dataset = load(saved())
    given = arrays()
    assert dataset.name == "set"
    assert dataset.classes == ("0", "1", "2")
    assert dataset.shape == (3, 8, 10)
    assert (dataset.train.images.permute(0, 2, 3, 1).numpy() == given["x_train"]).all()
    assert (dataset.test.labels.numpy() == given["y_test"]).all()


def test_channels_first_last_or_absent(saved):
    last = arrays()
    first = {x: last[x].transpose(0, 3, 1, 2) for x in ("x_train", "x_test")}
    grey = {x: last[x][..., 0] for x in ("x_train", "x_test")}
    expected = load(saved()).train.images
    assert (load(saved(**first)).train.images == expected).all()
    assert (load(saved(**grey)).train.images == expected[:, :1]).all()


def test_labels_may_start_anywhere_skip_and_come_as_a_column(saved):
    y_train, y_test = np.array([[7], [-1], [3]] * 4 + [[7]]), np.array([[3], [7], [3], [-1], [3]], np.int16)
    dataset = load(saved(y_train=y_train, y_test=y_test))
    assert dataset.classes == ("-1", "3", "7")
    assert dataset.train.labels.tolist() == [2, 0, 1] * 4 + [2]
    assert dataset.test.labels.tolist() == [1, 2, 1, 0, 1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_test": np.array([0, 9, 1, 2, 8])}, "y_test has classes that y_train lacks: '8', '9'"),
        ({"y_train": np.zeros(13)}, "y_train must be 13 integers, one per image, got float64"),
        ({"y_train": np.arange(12) % 3}, r"y_train must be 13 integers.*shape \(12,\)"),
        ({"y_train": np.zeros(13, int), "y_test": np.zeros(5, int)}, "at least 2 classes"),
        ({"x_train": np.zeros((13, 8, 10, 3))}, "x_train must be uint8, 0 to 255, got float64"),
        ({"x_test": np.zeros((5, 80), np.uint8)}, r"x_test must have shape .* got \(5, 80\)"),
        ({"x_test": np.zeros((5, 9, 9, 3), np.uint8)}, r"one shape, got \(3, 8, 10\) and \(3, 9, 9\)"),
        ({"y_train": np.array([None] * 13)}, "contains Python objects, which are not loaded"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(saved, changed, message):
    with pytest.raises(ValueError, match=message):
        load(saved(**changed))


def test_a_missing_array_is_named(tmp_path):
    given = arrays()
    del given["x_test"]
    np.savez(tmp_path / "set.npz", **given)
    with pytest.raises(ValueError, match="missing: x_test"):
        load(tmp_path / "set.npz")


def test_a_file_whose_bytes_are_damaged_is_said_to_be(tmp_path):
    """The headers of the archive are whole, what they compress is not."""
    path = tmp_path / "set.npz"
    np.savez_compressed(path, x=np.arange(9999) % 7)
    content = bytearray(path.read_bytes())
    content[60:120] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"set\.npz cannot be read: .* Expected a complete \.npz file"):
        read_arrays(path)


@pytest.mark.parametrize("keep", [0, 100, 2000])
def test_a_file_cut_short_is_said_to_be(saved, keep):
    path = saved()
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"set\.npz cannot be read: .* Expected a complete \.npz file"):
        load(path)
