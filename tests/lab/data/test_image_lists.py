"""Data sets in the list format of ImageNet-LT and iNaturalist, on small made images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tammes.lab.data import load
from tammes.lab.data.image_lists import lists

TRAIN = {"n01440764": 5, "n01443537": 3, "n02119789": 1}


def image(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((12, 10, 3), shade, np.uint8)).save(path)


@pytest.fixture
def imagenet_lt(tmp_path) -> tuple[Path, Path]:
    """The training list and the folder of images; names as in the original, PNG for JPEG."""
    root, lines = tmp_path / "images", {"train": [], "test": []}
    for label, (wnid, count) in enumerate(TRAIN.items()):
        for i in range(count):
            image(root / "train" / wnid / f"{wnid}_{i}.png", 50 * label + i)
            lines["train"].append(f"train/{wnid}/{wnid}_{i}.png {label}")
        image(root / "val" / f"ILSVRC2012_val_{label}.png", 200 + label)
        lines["test"].append(f"val/ILSVRC2012_val_{label}.png {label}")
    for name, some in lines.items():
        (tmp_path / f"ImageNet_LT_{name}.txt").write_text("\n".join(some) + "\n")
    return tmp_path / "ImageNet_LT_train.txt", root


def test_counts_labels_names_and_images_are_those_of_the_lists(imagenet_lt):
    path, root = imagenet_lt
    dataset = load(path, root=root)
    assert dataset.name == "ImageNet_LT"
    assert dataset.classes == tuple(TRAIN)
    assert dataset.class_counts.tolist() == list(TRAIN.values())
    assert dataset.test.labels.tolist() == [0, 1, 2]
    assert [int(i.flatten()[0]) for i in dataset.test.images] == [200, 201, 202]
    assert [int(i.flatten()[0]) for i in dataset.train.images] == [0, 1, 2, 3, 4, 50, 51, 52, 100]


def test_many_images_stay_on_disk(imagenet_lt):
    path, root = imagenet_lt
    dataset = lists(path, root, memory_limit=0, image_size=(8, 8))
    assert dataset.train.paths[0] == str(root / "train" / "n01440764" / "n01440764_0.png")
    assert dataset.shape == (3, 8, 8)


def test_classes_without_a_folder_of_their_own_are_numbers(tmp_path):
    """As iNaturalist's flat folders, and a list called val."""
    for i in range(4):
        image(tmp_path / "train_val2018" / f"{i}.jpg", 60 * i)
    (tmp_path / "iNaturalist18_train.txt").write_text(
        "train_val2018/0.jpg 1\ntrain_val2018/1.jpg 0\n\ntrain_val2018/2.jpg 1\n"
    )
    (tmp_path / "iNaturalist18_val.txt").write_text("train_val2018/3.jpg 0\n")
    dataset = load(tmp_path / "iNaturalist18_train.txt", root=tmp_path)
    assert dataset.classes == ("0", "1")
    assert dataset.class_counts.tolist() == [1, 2]


def test_missing_images_are_counted_and_the_first_named(imagenet_lt):
    path, root = imagenet_lt
    for i in (1, 3):
        (root / "train" / "n01440764" / f"n01440764_{i}.png").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"2 of the 9 images in .*_train.txt are not below .*_1\.png'"
    ):
        load(path, root=root)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train/n01440764/n01440764_0.png", "line 10: expected a path and a class number"),
        ("train/n01440764/n01440764_0.png one", "expected a path and a class number"),
        ("train/n01440764/n01440764_0.png -1", "expected a path and a class number"),
        ("../secret.png 0", "points outside the image folder"),
        ("/etc/passwd 0", "points outside the image folder"),
        ("train/n01440764/n01440764_0.png 7", "no image of class 3, but has class 7"),
    ],
)
def test_lines_that_cannot_be_meant_are_refused(imagenet_lt, line, message):
    path, root = imagenet_lt
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=message):
        load(path, root=root)


def test_lines_are_counted_with_empty_ones(imagenet_lt):
    path, root = imagenet_lt
    path.write_text("\n\n" + path.read_text() + "train/x.png\n")
    with pytest.raises(ValueError, match="line 12: expected"):
        lists(path, root)


def test_what_is_no_training_list_is_refused(imagenet_lt):
    path, root = imagenet_lt
    other = path.rename(path.with_name("images.txt"))
    with pytest.raises(ValueError, match='must have "train" in its name'):
        lists(other, root)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"train\.txt cannot be read: .*Expected text in UTF-8"):
        lists(path, root)


def test_an_empty_list_and_one_without_a_test_list_are_refused(imagenet_lt):
    path, root = imagenet_lt
    path.write_text("\n")
    with pytest.raises(ValueError, match="names no image"):
        load(path, root=root)
    path.with_name("ImageNet_LT_test.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"ImageNet_LT_test.txt or .*ImageNet_LT_val.txt"):
        load(path, root=root)
