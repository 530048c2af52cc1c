"""The figures of the paper's visual classification: which rows of Table 1 each of them shows.

Paper: Fig. 1 (norms of prototypes stay within 1.3 of each other under CE), Fig. 2 (fixed against learned
prototypes), Figs. 4-6 and 9-11 (histograms of similarities and sample margins).
Run: tammes reproduce figures
"""

from typing import Literal, NamedTuple

from tammes.recipes import table1


class Figure(NamedTuple):
    """A picture of some rows of one data set."""

    name: str
    title: str
    kind: Literal["measures", "histograms"]
    rows: tuple[str, ...]


def _with_r_sm(plain: str) -> tuple[str, ...]:
    return tuple(plain + end for end in table1.R_SM)


FIXED = ("normface-s10", "normface-s10-fixed")
LM = tuple(f"lmsoftmax-s{s}" for s in table1.LM_SCALES)
FIGURES = (
    Figure("fixed", "fixed and learned prototypes (as in Fig. 2)", "measures", FIXED),
    Figure(
        "cosface-s64", "with and without R_sm (as in Figs. 4, 9)", "histograms", _with_r_sm("cosface-s64")
    ),
    Figure("lmsoftmax", "LM-Softmax (as in Figs. 5, 6)", "histograms", LM),
    Figure("arcface-s20", "with and without R_sm (as in Fig. 10)", "histograms", _with_r_sm("arcface-s20")),
    Figure("normface-s64", "with and without R_sm (as in Fig. 11)", "histograms", _with_r_sm("normface-s64")),
)


def figures(dataset: str, preset: str) -> list[Figure]:
    """The paper's, and the curves of every run, a figure for each block of the table."""
    blocks: dict[str, list[str]] = {}
    for row in table1.rows(dataset, preset):
        blocks.setdefault(row.block, []).append(row.key.removeprefix(table1.prefix(dataset, preset)))
    curves = [
        Figure(f"curves-{names[0].partition('-')[0]}", block, "measures", tuple(names))
        for block, names in blocks.items()
        if block != "Fixed prototypes (Fig. 2)"
    ]
    return [*FIGURES, *curves]
