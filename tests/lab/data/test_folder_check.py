"""What `tammes data` finds in a folder of photos."""

import shutil

import pytest
from PIL import Image

from tammes.lab.data.folder_check import check_folder, check_lines
from tammes.lab.data.image_folders import layout


def split(photos, tmp_path):
    """The photos as train, and the dogs as test: every dog is in both."""
    shutil.copytree(photos, tmp_path / "both" / "train")
    shutil.copytree(photos / "dog", tmp_path / "both" / "test" / "dog")
    return tmp_path / "both"


def test_a_clean_folder_is_told_to_be_clean(photos):
    shutil.rmtree(photos / "emu")
    found = check_folder(layout(photos))
    assert not any((found.unreadable, found.shared, found.conflicting, found.repeated, found.single))
    assert found.spread == ((12, 8),) * 3
    lines = check_lines(found, photos)
    assert lines["unreadable"] == lines["copies"] == "none"
    assert lines["in both"] == "no image is in both train and test (by content)"
    assert lines["sizes"] == "all 12 x 8 (height x width)"


def test_images_in_both_splits_are_found_by_content(photos, tmp_path):
    both = split(photos, tmp_path)
    (both / "test" / "dog" / "000.png").rename(both / "test" / "dog" / "renamed.png")
    found = check_folder(layout(both))
    assert len(found.shared) == 7
    assert [
        str(both / "train" / "dog" / "000.png"),
        str(both / "test" / "dog" / "renamed.png"),
    ] in found.shared
    line = check_lines(found, both)["in both"]
    assert line.startswith("7 images in both train and test")
    assert "train/dog/000.png = test/dog/renamed.png" in line


def test_copies_other_labels_single_images_and_unreadable_files_are_found(photos):
    files = layout(photos).train[0]
    cat, dog = (next(f for f in files if f"/{name}/" in f) for name in ("cat", "dog"))
    shutil.copy(cat, photos / "emu" / "as-a-cat.png")
    shutil.copy(dog, photos / "dog" / "zzz.png")
    (photos / "cat" / "broken.png").write_bytes(b"no image")
    Image.new("RGB", (60, 40)).save(photos / "dog" / "wide.png")
    (photos / "fox").mkdir()
    Image.new("RGB", (8, 12), "orange").save(photos / "fox" / "only.png")
    found = check_folder(layout(photos))
    assert found.single == ["emu", "fox"] or found.single == ["fox"]
    assert [str(photos / "cat" / "broken.png")] == list(found.unreadable)
    assert len(found.conflicting) == 1
    assert found.repeated + len(found.shared) >= 2
    assert found.spread is not None
    assert found.spread[2] == (40, 60)
    lines = check_lines(found, photos)
    assert lines["unreadable"].startswith("1 file: cat/broken.png (")
    assert lines["labels"].startswith("1 image in more than one class: ")


@pytest.mark.parametrize("name", ["in both", "labels", "single", "copies"])
def test_every_topic_is_told(photos, name):
    assert name in check_lines(check_folder(layout(photos)), photos)
