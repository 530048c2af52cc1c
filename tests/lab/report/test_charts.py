"""Charts: what is drawn, and where."""

import itertools
import re

import numpy as np
import pytest

from tammes.lab.report import inspect
from tammes.lab.report.charts import NAME_HEIGHT, NAME_WIDTH, Curve, confusion_matrix, line_chart, matrix
from tammes.lab.report.sample_map import sample_map


def test_a_single_point_has_a_marker():
    drawn = line_chart("accuracy", [Curve("run", 0, [1], [50.0])])
    assert drawn.count('class="marker"') == 1
    many = line_chart("accuracy", [Curve("run", 0, list(range(100)), [50.0] * 100)])
    assert 'class="marker"' not in many  # a curve of a hundred points is a line


def test_a_missing_value_has_no_point():
    drawn = line_chart("accuracy", [Curve("run", 0, [1, 2, 3], [0.5, float("nan"), 0.7])])
    assert drawn.count('class="marker"') == 2


def test_the_matrix_has_a_color_bar():
    drawn = matrix("cosines", ["a", "b"], np.array([[1.0, -0.5], [-0.5, 1.0]]))
    assert drawn.count("<image") == 2
    for end in ("cosine −1", "0, at right angles", "1, the same direction"):
        assert end in drawn


def test_the_confusion_matrix_counts_and_opens_mistakes_only():
    classes, counts = {4: "ant", 5: "bee", 7: "cow"}, np.array([[5, 2, 0], [0, 7, 0], [1, 0, 3]])
    drawn = confusion_matrix("confusions", classes, counts, [7, 7, 6], {"4-5"})
    assert re.findall(r'data-open="(\d-\d)"', drawn) == ["4-5"]  # the other mistake has no line to open
    assert drawn.count('class="cell own"') == 3
    assert re.findall(r">(\d+)</text>", drawn) == ["5", "2", "7", "1", "3"]
    assert 'data-tip="ant, taken for bee: 2 of 7"' in drawn
    assert 'data-tip="bee, correct: 7 of 7"' in drawn
    assert 'data-tip="cow, taken for ant: 1 of 6"' in drawn


@pytest.mark.usefixtures("flat")
def test_the_map_has_names_and_a_legend(make):
    embeddings, labels, prototypes = make(3, 4, 30)
    (section,) = sample_map(inspect(embeddings, labels, prototypes, classes=["ant", "bee", "<i>cow"]))
    names = re.findall(r'<text class="name".*?>(.*?)</text>', section.body)
    assert sorted(names) == ["&lt;i&gt;cow", "ant", "bee"]
    legend = section.body.split('<ul class="key">')[1]
    assert re.findall(r"</svg>(.*?)</li>", legend) == ["ant", "bee", "&lt;i&gt;cow"]


@pytest.mark.usefixtures("flat")
def test_a_map_of_many_classes_has_the_names_it_has_room_for_and_no_legend(make):
    embeddings, labels, prototypes = make(60, 4, 240)
    (section,) = sample_map(inspect(embeddings, labels, prototypes))
    names = re.findall(r'<text class="name" x="(.*?)" y="(.*?)".*?>(.*?)</text>', section.body)
    assert 1 < len(names) <= 60
    boxes = [(float(x), float(y), NAME_WIDTH * len(name) / 2) for x, y, name in names]
    assert all(half <= x <= 480 - half for x, _, half in boxes)
    for (x, y, half), (other_x, other_y, other_half) in itertools.combinations(boxes, 2):
        assert abs(y - other_y) > NAME_HEIGHT - 0.2 or abs(x - other_x) > half + other_half - 0.2
    assert 'class="key"' not in section.body
