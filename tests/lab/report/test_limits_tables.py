"""The tables of limits.json: what a cell says."""

import pytest

from tammes.lab.report.limits_tables import codes_grid, losses_grid, minority_grid

CODE = {"k": 9, "d": 3, "softmax_alone": 0.6, "softmax_gamma": 0.6, "rattlers": 0, "cosines_off": 1e-9}


def texts(grid):
    return [[cell.text for cell in line] for _, lines in grid.blocks for line in lines]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "="),
        ({"k": 4}, "simplex"),
        ({"k": 6, "orthogonal_parts": [3, 3]}, "3+3"),
        ({"cosines_off": 0.2}, "≠"),
        ({"cosines_off": 0.2, "rattlers": 2}, "r2"),
        ({"softmax_alone": 0.5}, "(=)"),
    ],
)
def test_a_cell_says_how_a_softmax_code_compares_with_the_packing(changed, text):
    row = CODE | changed
    assert texts(codes_grid([row])) == [[str(row["k"]), text]]


def test_what_has_not_converged_is_marked_and_explained():
    row = {"loss": "CE", "k": 8, "d": 3, "tammes_deg": 74.858, "class_margin_deg": 74.1, "gradient": 1e-9}
    fine, rough = losses_grid([row]), losses_grid([row | {"gradient": 0.1}])
    assert (texts(fine), fine.notes) == ([["8", "3", "74.86", "74.10"]], [])
    assert texts(rough)[0][-1] == "74.10*"
    assert "not an optimum" in rough.notes[0]


def test_the_ratio_at_which_rare_classes_merge_stands_below():
    row = {"loss": "LM", "R_w": False, "gradient": 0.0, "merged": []}
    rows = [row | {"ratio": 10, "rare_deg": 50.0}, row | {"ratio": 1000, "rare_deg": 0.4, "merged": [[1, 2]]}]
    rows.append(row | {"R_w": True, "ratio": 10, "rare_deg": 96.0})
    grid = minority_grid(rows)
    assert list(grid.columns) == ["ratio", "LM", "LM + R_w"]
    assert texts(grid) == [["10", "50.00", "96.00"], ["1,000", "0.40", ""], ["merged at", "1,000", "-"]]
