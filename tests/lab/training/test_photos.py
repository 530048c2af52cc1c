"""Small copies of test images that are kept with a run."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from tammes.lab.data.dataset import InMemory, OnDisk
from tammes.lab.training import photos
from tammes.lab.training.photos import with_photos


def arrays(index: list[int]) -> dict[str, np.ndarray]:
    """Two samples of each of two classes; the second one is misclassified."""
    return {
        "index": np.array(index),
        "label": np.array([0, 0, 1, 1]),
        "prediction": np.array([0, 1, 1, 1]),
        "sample_margin": np.array([0.5, -0.2, 0.3, 0.9], np.float32),
        "similarity": np.array([0.9, 0.3, 0.4, 1.0], np.float32),
        "class_accuracy": np.array([0.5, 1.0]),
    }


def files(found: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
    """The pixels of each sample's photo."""
    data, ends = found["photo_jpeg"].tobytes(), [0, *found["photo_end"].tolist()]
    samples = found["photo_sample"].tolist()
    jpegs = [data[a:b] for a, b in itertools.pairwise(ends)]
    return {s: np.asarray(Image.open(io.BytesIO(j))) for s, j in zip(samples, jpegs, strict=True)}


@pytest.fixture
def on_disk(tmp_path):
    """Five plain images of 60 x 40 pixels, each of its own brightness."""
    paths = []
    for i in range(5):
        path = tmp_path / "kind" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (60, 40), (50 * i,) * 3).save(path)
        paths.append(str(path))
    return OnDisk(tuple(paths), torch.zeros(5, dtype=torch.int64), (16, 16))


def test_each_sample_has_the_photo_of_its_own_index(on_disk):
    """The image of index 1 could not be read, so the second sample is that of index 2."""
    found = with_photos(arrays([0, 2, 3, 4]), on_disk)
    pictures = files(found)
    assert set(pictures) == {0, 1, 2, 3}
    assert [round(pictures[s].mean() / 50) for s in range(4)] == [0, 2, 3, 4]
    assert found["photo_sample"][0] == 1  # the mistake comes first
    assert found["photo_name"][0] == "kind/2.png"


def test_files_are_read_again_at_the_size_of_a_thumbnail(on_disk):
    found = with_photos(arrays([0, 1, 2, 3]), on_disk)
    assert found["photo_size"].tolist() == [96, 96]
    assert {picture.shape for picture in files(found).values()} == {(96, 96, 3)}
    decoded = InMemory(torch.zeros(5, 3, 16, 8, dtype=torch.uint8), on_disk.labels, on_disk.paths)
    found = with_photos(arrays([0, 1, 2, 3]), decoded)
    assert found["photo_size"].tolist() == [96, 48]
    assert round(files(found)[3].mean() / 50) == 3


def test_images_without_files_keep_their_size():
    grey = InMemory(torch.full((4, 1, 8, 6), 200, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))
    found = with_photos(arrays([0, 1, 2, 3]), grey)
    assert {picture.shape for picture in files(found).values()} == {(8, 6)}
    assert set(found["photo_name"].tolist()) == {""}


def test_a_file_that_has_gone_is_left_out(on_disk):
    (gone,) = [path for path in on_disk.paths if path.endswith("1.png")]
    open(gone, "w").close()  # an empty file is no image
    found = with_photos(arrays([0, 1, 2, 3]), on_disk)
    assert set(files(found)) == {0, 2, 3}


def test_there_is_a_limit(on_disk, monkeypatch):
    monkeypatch.setattr(photos, "MAX_PHOTOS", 1)
    assert with_photos(arrays([0, 1, 2, 3]), on_disk)["photo_sample"].tolist() == [1]


def test_other_evaluations_are_returned_as_they_are(on_disk):
    given = {"average_precision": np.ones(3)}
    assert with_photos(given, on_disk) == given
