"""Imbalanced classes: counts against their formulas, which images stay, what is refused."""

import math
from dataclasses import replace

import pytest
import torch

from tammes.lab.data import DataSet, InMemory, imbalance, load
from tammes.lab.data.class_imbalance import Imbalance, imbalanced_sizes, parse_imbalance


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


def test_long_tailed_cifar_10_has_the_published_counts():
    assert imbalanced_sizes(5000, 10) == (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)


@pytest.mark.parametrize(("most", "classes", "ratio"), [(500, 100, 100), (500, 100, 10), (139, 10, 7.5)])
def test_long_tailed_counts_follow_the_formula(most, classes, ratio):
    sizes = imbalanced_sizes(most, classes, "long_tailed", ratio)
    for j, size in enumerate(sizes):
        exact = most / ratio ** (j / (classes - 1))
        assert size <= exact + 1e-6 < size + 1 + 1e-5
    assert sizes[0] == most
    assert sizes[-1] == math.floor(most / ratio)


@pytest.mark.parametrize(("minority", "rare"), [(0.5, 5), (0.3, 3), (0.0, 0), (1.0, 10)])
def test_step_counts_fall_once(minority, rare):
    sizes = imbalanced_sizes(5000, 10, "step", 100, minority)
    assert sizes == (5000,) * (10 - rare) + (50,) * rare


@pytest.mark.parametrize(("kind", "ratio"), [("long_tailed", 20), ("step", 13), ("long_tailed", 1)])
def test_training_classes_are_thinned_out_and_test_images_stay(digits, kind, ratio):
    imbalanced = imbalance(digits, kind, ratio)
    most = int(digits.class_counts.min())
    assert tuple(imbalanced.class_counts.tolist()) == imbalanced_sizes(most, 10, kind, ratio)
    assert imbalanced.test is digits.test
    kept = {image.numpy().tobytes() for image in imbalanced.train.images}
    assert kept <= {image.numpy().tobytes() for image in digits.train.images}


def test_the_seed_draws_the_images(digits):
    first, again, other = (imbalance(digits, ratio=20, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.train.images, again.train.images)
    assert not torch.equal(first.train.images, other.train.images)


def test_the_draw_is_not_the_first_images(digits):
    imbalanced = imbalance(digits, "step", 10)
    rare = digits.train.images[digits.train.labels == 9]
    assert not torch.equal(imbalanced.train.images[imbalanced.train.labels == 9], rare[: len(rare) // 10])


def test_files_on_disk_are_thinned_out_too(photos):
    imbalanced = imbalance(load(photos, memory_limit=0), "step", 1)
    assert imbalanced.class_counts.tolist() == [1, 1, 1]  # as many as the smallest class has


def test_a_ratio_that_empties_a_class_is_refused(digits):
    """The smallest class has 139 training images, so the last one would have 139 / 140."""
    most = int(digits.class_counts.min())
    with pytest.raises(ValueError, match=rf"no image of class '9'.*largest ratio possible is {most}\."):
        imbalance(digits, "long_tailed", most + 1)
    assert imbalance(digits, "long_tailed", most).class_counts.min() == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("long_tailed:0.5", "ratio of the largest class to the smallest must be at least 1, got 0.5"),
        ("long_tailed:nan", "must be finite"),
        ("step:10:1.5", r"minority must lie in \[0, 1\]"),
        ("sloped:10", "must be long_tailed:100"),
        ("long_tailed", "must be long_tailed:100"),
        ("long_tailed:ten", "must be long_tailed:100"),
        ("long_tailed:10:0.5", "must be long_tailed:100"),
    ],
)
def test_text_that_makes_no_sense_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_imbalance(text)


@pytest.mark.parametrize("value", [Imbalance(), Imbalance("step", 10), Imbalance("step", 7.5, 0.25)])
def test_parse_reads_what_str_prints(value):
    assert parse_imbalance(str(value)) == value


def test_a_class_that_is_not_there_is_no_smallest_class(made):
    """Unequal classes: the smallest one sets the largest size."""
    labels = torch.tensor([0] * 20 + [1] * 12 + [2] * 5)
    imbalanced = imbalance(replace(made, train=InMemory(made.train.images, labels)), "long_tailed", 5)
    assert imbalanced.class_counts.tolist() == [5, 2, 1]
