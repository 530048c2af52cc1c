import shutil

import numpy as np
import pytest
from PIL import Image

from tammes.lab.data import InMemory, OnDisk, load


def test_a_fifth_of_every_class_is_held_out_and_a_single_image_trains(photos):
    dataset = load(photos)
    assert dataset.name == "photos"
    assert dataset.classes == ("cat", "dog", "emu")
    assert dataset.class_counts.tolist() == [8, 6, 1]
    assert dataset.test.labels.tolist() == [0, 0, 1]
    assert dataset.shape == (3, 12, 8)
    assert isinstance(dataset.train, InMemory)


def test_the_images_in_memory_are_those_of_the_files(photos):
    held, files = load(photos), load(photos, memory_limit=0)
    assert isinstance(files.train, OnDisk)
    for split, listed in ((held.train, files.train), (held.test, files.test)):
        for image, label, path in zip(split.images, split.labels, listed.paths, strict=True):
            assert (image.permute(1, 2, 0).numpy() == np.asarray(Image.open(path))).all()
            assert f"/{held.classes[label]}/" in path
    assert not set(files.train.paths) & set(files.test.paths)


@pytest.mark.parametrize("second", ["test", "val", "valid", "validation", "eval"])
def test_train_and_test_folders_are_taken_as_they_are(photos, second, tmp_path):
    shutil.copytree(photos, tmp_path / "both" / "train")
    shutil.copytree(photos / "dog", tmp_path / "both" / second / "dog")
    dataset = load(tmp_path / "both")
    assert dataset.class_counts.tolist() == [10, 7, 1]
    assert dataset.test.labels.tolist() == [1] * 7
    assert dataset.split_origin == f"the folder {second}/"


def test_folders_next_to_train_that_are_not_used_are_named(photos, tmp_path):
    both = tmp_path / "both"
    shutil.copytree(photos, both / "train")
    for name in ("test", "valid", "extra"):
        shutil.copytree(photos / "dog", both / name / "dog")
    with pytest.warns(UserWarning, match="is not used|are not used") as caught:
        dataset = load(both)
    assert dataset.split_origin == "the folder test/"
    told = [str(line.message) for line in caught]
    assert len(told) == 2
    assert told[0].startswith(f"{both}/valid is not used")
    assert "not used: 'extra'. The test images go into one of test, val, valid" in told[1]


def test_an_unknown_folder_alone_is_named_and_images_are_held_out(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "both" / "train")
    shutil.copytree(photos / "dog", tmp_path / "both" / "testing" / "dog")
    with pytest.warns(UserWarning, match="not used: 'testing'"):
        dataset = load(tmp_path / "both")
    assert dataset.split_origin == "a fifth of each class of train/, held out at random"


def test_a_class_of_test_that_train_has_not_is_named(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "both" / "train")
    shutil.copytree(photos / "dog", tmp_path / "both" / "test" / "wolf")
    with pytest.raises(ValueError, match=r"both/test has classes that .*both/train lacks: 'wolf'"):
        load(tmp_path / "both")


def test_a_folder_of_images_called_train_is_a_class(photos):
    (photos / "emu").rename(photos / "train")
    assert load(photos).classes == ("cat", "dog", "train")


def test_images_that_differ_in_size_are_fitted_to_128(photos):
    Image.new("RGB", (20, 20)).save(photos / "cat" / "000.png")
    assert load(photos).shape == (3, 128, 128)
    assert load(photos, image_size=16).shape == (3, 16, 16)
    assert load(photos, image_size=(16, 8), memory_limit=0).shape == (3, 16, 8)


def test_an_empty_class_folder_is_left_out_with_a_warning(photos):
    (photos / "fox").mkdir()
    with pytest.warns(UserWarning, match=r"Class folders without images in .*photos are left out: 'fox'"):
        assert load(photos).classes == ("cat", "dog", "emu")


def test_hidden_and_other_files_are_no_images(photos):
    (photos / "cat" / "._000.png").write_bytes(b"")
    (photos / "cat" / "notes.txt").write_text("nine lives")
    (photos / ".thumbnails").mkdir()
    (photos / "readme.md").write_text("pets")
    assert load(photos, max_unreadable=0).class_counts.tolist() == [8, 6, 1]


def test_unreadable_images_are_skipped_and_named_up_to_the_limit(photos, caplog):
    (photos / "cat" / "aaa.png").write_bytes(b"not an image")
    dataset = load(photos, max_unreadable=1)
    assert len(dataset.train) + len(dataset.test) == 18
    assert "aaa.png" in caplog.text
    with pytest.raises(ValueError, match=r"max_unreadable=0 .*aaa\.png"):
        load(photos, max_unreadable=0)


def test_a_class_with_no_readable_image_is_named(photos):
    (photos / "emu" / "000.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match="photos: no training image of 'emu'"):
        load(photos)


def test_folders_without_what_is_needed_are_refused(photos, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    told = r"^No class folders in \S+bare; expected \S+bare/CLASS/image.jpg"
    with pytest.raises(ValueError, match=told):
        load(tmp_path / "bare")
    shutil.copy(photos / "cat" / "000.png", tmp_path / "bare")
    with pytest.raises(ValueError, match=told):
        load(tmp_path / "bare")
    (tmp_path / "hollow" / "fox").mkdir(parents=True)
    with pytest.raises(ValueError, match="No images in the class folders"):
        load(tmp_path / "hollow")
    shutil.copytree(photos / "cat", tmp_path / "one" / "cat")
    with pytest.raises(ValueError, match=r"one: margins need at least 2 classes, got \['cat'\]"):
        load(tmp_path / "one")
