import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tammes.lab.data import load


def test_digits_are_split_alike_in_every_class_and_scaled_to_bytes():
    dataset = load("digits")
    assert len(dataset.train) + len(dataset.test) == 1797
    assert dataset.shape == (1, 8, 8)
    assert dataset.train.images.max() == 255
    share = torch.bincount(dataset.test.labels) / (torch.bincount(dataset.test.labels) + dataset.class_counts)
    assert share.tolist() == pytest.approx([0.2] * 10, abs=0.005)


def test_image_size_scales_images_and_their_shift():
    dataset = load("digits", image_size=(16, 24))
    assert dataset.shape == (1, 16, 24)
    assert dataset.augmentation.shift == 2
    assert dataset.mean == pytest.approx([dataset.train.images.double().mean().item() / 255])


def write_idx(path: Path, array: np.ndarray) -> None:
    """The format of MNIST's files: two zeros, type 8 (uint8), number of axes, sizes, bytes."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_files_are_read_from_below_the_root(name, folder, tmp_path):
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28))
    for part, n in (("train", 20), ("t10k", 6)):
        write_idx(raw / f"{part}-images-idx3-ubyte", images[:n])
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(n) % 10)
    dataset = load(name, root=tmp_path)
    assert dataset.name == name
    assert (dataset.train.images[:, 0].numpy() == images).all()
    assert dataset.test.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.classes[9] == ("9" if name == "mnist" else "Ankle boot")


def test_an_archive_at_the_root_is_taken_first(tmp_path):
    x, y = np.zeros((10, 32, 32, 3), np.uint8), np.arange(10)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    dataset = load("cifar10", root=tmp_path)
    assert dataset.name == "cifar10"
    assert dataset.classes[:2] == ("airplane", "automobile")
    assert dataset.augmentation.flip


def test_an_archive_of_cifar100_has_the_names_that_torchvision_gives(tmp_path):
    x, y = np.zeros((100, 32, 32, 3), np.uint8), np.arange(100)
    np.savez(tmp_path / "cifar100.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    classes = load("cifar100", root=tmp_path).classes
    assert len(set(classes)) == 100
    assert list(classes) == sorted(classes)  # as in the official files
    assert (classes[0], classes[23], classes[99]) == ("apple", "cloud", "worm")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_a_missing_set_is_not_fetched_unasked(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"{name} is not complete in .*download=True"):
        load(name, root=tmp_path)
    assert not list(tmp_path.rglob("*.gz"))


def test_an_unknown_name_brings_up_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"Unknown data set 'cifar-10'.* Did you mean cifar10\?"):
        load("cifar-10")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(FileNotFoundError, match=r"notes.txt is neither a folder nor an .npz or .csv file"):
        load("notes.txt")
    with pytest.raises(ValueError, match="image_size must be at least 1, got 0"):
        load("digits", image_size=0)


@pytest.mark.data
def test_mnist_itself_has_its_known_size_and_statistics():
    root = Path(os.environ.get("TAMMES_DATA", ""))
    if not (root / "MNIST" / "raw").is_dir():
        pytest.skip("needs MNIST/raw in the folder that TAMMES_DATA names")
    dataset = load("mnist", root=root)
    assert (len(dataset.train), len(dataset.test)) == (60_000, 10_000)
    assert dataset.class_counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert dataset.mean == pytest.approx([0.1307], abs=5e-5)
    assert dataset.std == pytest.approx([0.3081], abs=5e-5)


def test_a_download_that_fails_is_one_clear_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", refuse)
    with pytest.raises(OSError, match=r"cifar10 could not be downloaded to .*no route to host"):
        load("cifar10", root=tmp_path, download=True)
