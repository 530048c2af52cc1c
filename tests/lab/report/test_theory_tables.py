"""The sections on neural collapse and on the margin bound: their numbers, and when they are absent."""

import numpy as np
import pytest
import torch

from tammes.geometry import simplex
from tammes.lab.report import ModelResults
from tammes.lab.report.collapse_table import collapse_table
from tammes.lab.report.margin_bound_table import margin_bound_table

K, D = 4, 8


@pytest.fixture
def model() -> ModelResults:
    """Collapsed features on a simplex, but for the lengths of the prototypes."""
    prototypes = simplex(K, D).numpy()
    labels = np.arange(K).repeat(5)
    arrays = {
        "label": labels,
        "shown": np.arange(len(labels)),
        "embedding": prototypes[labels].astype(np.float16),
        "sample_margin": np.where(np.arange(len(labels)) == 0, 0.3, 0.9),
    }
    return ModelResults(
        name="a",
        data="made",
        classes=tuple("abcd"),
        dimensions=D,
        numbers={},
        arrays=arrays,
        prototypes=prototypes * np.array([[1.0], [2.0], [3.0], [4.0]]),
    )


def rows(section):
    """Cells of the section's table, row by row."""
    return [
        [cell.split("<")[0] for cell in row.split('<td class="number">')[1:]]
        for row in str(section.body).split("<tr>")
        if "<td" in row
    ]


def test_a_collapsed_model_has_zeros(model):
    (section,) = collapse_table(model)
    values = [float(cells[-1]) for cells in rows(section)]
    assert len(values) == 6
    assert values == pytest.approx([0.0] * 6, abs=2e-3)  # embeddings are stored with half precision
    assert "20 samples" in section.body


def test_merged_prototypes_show_as_a_gap_of_one(model):
    merged = model.prototypes[[0, 0, 2, 3]]
    (section,) = collapse_table(ModelResults(**vars(model) | {"prototypes": merged}))
    assert float(rows(section)[-1][-1]) == pytest.approx(1.0, abs=1e-6)


def test_more_classes_than_a_simplex_has_are_told_so(model):
    (section,) = collapse_table(ModelResults(**vars(model) | {"dimensions": 2}))
    assert "4 classes in 2 dimensions" in section.body


@pytest.mark.parametrize("missing", ["prototypes", "embedding", "class"])
def test_there_is_no_such_section_where_it_cannot_be_measured(model, missing):
    changed = (
        vars(model)
        | {
            "prototypes": {"prototypes": None},
            "embedding": {"arrays": {n: v for n, v in model.arrays.items() if n != "embedding"}},
            "class": {"classes": tuple("abcde")},
        }[missing]
    )
    assert collapse_table(ModelResults(**changed)) == []


def test_shares_below_a_margin(model):
    """One of twenty samples is below 0.5, all are below 1: 1/5 of one of four classes, and 100 %."""
    (section,) = margin_bound_table(model)
    below = {float(number.split("<")[0]): float(cells[0]) for number, cells in labeled(section)}
    assert below[0.25] == 0
    assert below[0.5] == pytest.approx(5.0)
    assert below[1.0] == pytest.approx(100.0)


def labeled(section):
    lines = [row for row in str(section.body).split("<tr>") if "<td>" in row]
    return zip((row.split("<td>")[1] for row in lines), rows(section), strict=True)


def test_other_tasks_have_no_margins_and_no_bound(model):
    arrays = {"label": torch.zeros(3).numpy()}
    assert margin_bound_table(ModelResults(**vars(model) | {"arrays": arrays})) == []
