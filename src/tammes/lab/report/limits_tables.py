"""Tables of optima with free features, from the rows of limits.json."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tammes.lab.report.minority_figure import CONVERGED
from tammes.lab.report.tables import Cell, Grid

LimitsRow = Mapping[str, Any]

SAME = 1e-3
"""Largest difference of cosines between two results that are one code."""
BY_ITSELF = 1e-7
"""Largest difference of gamma at which a search has found the optimum by itself."""


def losses_grid(rows: Sequence[LimitsRow]) -> Grid:
    """Class margin of the optimum of each loss, one line per number of classes and dimensions."""
    losses, sizes = _distinct(rows, "loss"), list(dict.fromkeys((row["k"], row["d"]) for row in rows))
    found = {(row["loss"], row["k"], row["d"]): row for row in rows}
    lines = []
    for k, d in sizes:
        own = [found.get((loss, k, d)) for loss in losses]
        tammes = next(row["tammes_deg"] for row in own if row is not None)
        lines.append([Cell(str(k)), Cell(str(d)), Cell(f"{tammes:.2f}"), *map(_margin_cell, own)])
    title = "Class margin of each loss's optimum with free features, in degrees"
    return Grid(title, ["k", "d", "Tammes", *losses], [("", lines)], 2, _converged_note(rows))


def minority_grid(rows: Sequence[LimitsRow]) -> Grid:
    """Smallest angle between rare classes by imbalance ratio and loss, and the ratio at which they merge."""
    kinds = sorted(dict.fromkeys((row["R_w"], row["loss"]) for row in rows), key=lambda kind: kind[0])
    found = {(row["R_w"], row["loss"], row["ratio"]): row for row in rows}
    lines = [
        [Cell(f"{ratio:,}"), *(_angle_cell(found.get((*kind, ratio))) for kind in kinds)]
        for ratio in sorted(_distinct(rows, "ratio"))
    ]
    merged = [
        min((r["ratio"] for r in rows if (r["R_w"], r["loss"]) == kind and r["merged"]), default=None)
        for kind in kinds
    ]
    lines.append([Cell("merged at"), *(Cell("-" if ratio is None else f"{ratio:,}") for ratio in merged)])
    columns = ["ratio", *(f"{loss} + R_w" if centred else loss for centred, loss in kinds)]
    title = "Smallest angle between rare classes, in degrees"
    return Grid(title, columns, [("", lines)], 1, _converged_note(rows))


def codes_grid(rows: Sequence[LimitsRow]) -> Grid:
    """How the softmax code compares with the packing, one line per number of classes."""
    dimensions, found = sorted(_distinct(rows, "d")), {(row["k"], row["d"]): row for row in rows}
    lines = [
        [Cell(str(k)), *(_code_cell(found.get((k, d))) for d in dimensions)]
        for k in sorted(_distinct(rows, "k"))
    ]
    title = "Softmax codes and packings"
    return Grid(title, ["k", *(f"d = {d}" for d in dimensions)], [("", lines)], 1)


GRIDS: dict[str, Callable[[Sequence[LimitsRow]], Grid]] = {
    "losses": losses_grid,
    "minority": minority_grid,
    "codes": codes_grid,
}
"""Name of a part of limits.json to its table."""


def _margin_cell(row: LimitsRow | None) -> Cell:
    return Cell() if row is None else Cell(f"{row['class_margin_deg']:.2f}{_star(row)}")


def _angle_cell(row: LimitsRow | None) -> Cell:
    return Cell() if row is None else Cell(f"{row['rare_deg']:.2f}{_star(row)}")


def _code_cell(row: LimitsRow | None) -> Cell:
    """simplex; the sizes of orthogonal parts; = or ≠ with rattlers; in brackets if not found by itself."""
    if row is None:
        return Cell()
    if row["k"] <= row["d"] + 1:
        word = "simplex"
    elif row["k"] <= 2 * row["d"]:
        word = "+".join(map(str, row["orthogonal_parts"]))
    elif row["rattlers"]:
        word = f"r{row['rattlers']}"
    else:
        word = "=" if row["cosines_off"] <= SAME else "≠"
    return Cell(word if row["softmax_alone"] >= row["softmax_gamma"] - BY_ITSELF else f"({word})")


def _distinct(rows: Iterable[LimitsRow], name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def _star(row: LimitsRow) -> str:
    return "" if row["gradient"] <= CONVERGED else "*"


def _converged_note(rows: Iterable[LimitsRow]) -> list[str]:
    marked = any(_star(row) for row in rows)
    return ["An asterisk marks a gradient that has not vanished: not an optimum."] if marked else []
