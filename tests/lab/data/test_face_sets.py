"""Sets of faces: LFW's View 1, lists beside images, pairs drawn from folders."""

import warnings

import numpy as np
import pytest
from PIL import Image

from tammes.lab.data import face_sets as module
from tammes.lab.data import load
from tammes.lab.data.face_sets import FaceSet, drawn_pairs, lfw_view1


def people(folder, counts: dict[str, int]) -> None:
    random = np.random.default_rng(0)
    for person, count in counts.items():
        (folder / person).mkdir(parents=True)
        for i in range(1, count + 1):
            pixels = random.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / person / f"{person}_{i:04d}.jpg")


@pytest.fixture
def root(tmp_path):
    """Four people to learn, one of them with a single image, and two others to verify."""
    people(tmp_path / "lfw" / "images", {"Ann": 6, "Bob": 2, "Carl": 1, "Dan": 3, "Eve": 2, "Fay": 1})
    (tmp_path / "lfw" / "peopleDevTrain.txt").write_text("4\nAnn\t6\nBob\t2\nCarl\t1\nDan\t3\n")
    (tmp_path / "lfw" / "pairsDevTest.txt").write_text("1\nEve\t1\t2\nEve\t1\tFay\t1\n")
    return tmp_path


def test_view_1_learns_people_with_two_images_and_verifies_others(root):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody is in both
        dataset = load("lfw-view1", root=root)
    assert isinstance(dataset, FaceSet)
    assert dataset.classes == ("Ann", "Bob", "Dan")
    assert dataset.class_counts.tolist() == [5, 2, 3]  # of Ann's six images one is held out
    assert dataset.test.labels.tolist() == [0]
    assert dataset.shape == (3, 64, 64)
    (pairs,) = dataset.pairs
    assert pairs.name == "lfw_view1"
    assert pairs.people == ("Eve", "Eve", "Fay")


def test_people_in_train_and_test_are_counted_and_named(root):
    (root / "lfw" / "pairsDevTest.txt").write_text("1\nAnn\t1\t2\nDan\t1\tFay\t1\n")
    with pytest.warns(
        UserWarning, match="2 of the 3 people in lfw_view1 are also in the training set: 'Ann', 'Dan'"
    ):
        lfw_view1(root)


def test_lfw_without_its_lists_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no peopleDevTrain\.txt"):
        load("lfw-view1", root=tmp_path)


def test_lists_in_a_folder_of_people_join_the_set(root):
    folder = root / "lfw" / "images"
    assert not isinstance(load(folder), FaceSet)
    (folder / "pairs.csv").write_text("first,second,same\nAnn/Ann_0001.jpg,Ann/Ann_0002.jpg,1\n")
    with pytest.warns(UserWarning, match="1 of the 1 people in pairs"):
        dataset = load(folder)
    assert isinstance(dataset, FaceSet)
    assert [len(pairs) for pairs in dataset.pairs] == [1]


def test_pairs_drawn_from_a_folder_say_what_they_are(root, monkeypatch):
    pairs = drawn_pairs(root / "lfw" / "images")
    assert pairs.people is not None
    who = np.array(pairs.people)
    assert ((who[pairs.first] == who[pairs.second]) == pairs.same).all()
    assert pairs.same.sum() == 5 + 1 + 2 + 1 == (~pairs.same).sum()
    assert (pairs.first != pairs.second).all()
    assert [path.split("/")[-2] for path in pairs.images] == list(pairs.people)
    again = drawn_pairs(root / "lfw" / "images")
    assert (again.second == pairs.second).all()
    monkeypatch.setattr(module, "DRAWN", 3)
    fewer = drawn_pairs(root / "lfw" / "images")
    assert (fewer.same.sum(), (~fewer.same).sum()) == (3, 3)


def test_a_folder_of_strangers_gives_no_pairs(tmp_path):
    people(tmp_path / "faces", {"Ann": 1, "Bob": 1})
    with pytest.raises(ValueError, match="needs at least two people, one of them with two images"):
        drawn_pairs(tmp_path / "faces")
