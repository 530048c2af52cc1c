"""`Table`, a table of the paper as a value, and `reproduce`, which trains its missing rows and formats it.

>>> from tammes.lab.recipes import table1
>>> from tammes.lab.recipes.table import reproduce
>>> table = table1.table(dataset="mnist", data_root="data")
>>> table.title, len(table.rows)
('Table 1 on MNIST, laptop preset', 53)
>>> grid = reproduce(table, rows=["normface-s64*"], seeds=3)  # doctest: +SKIP
"""

import dataclasses
import fnmatch
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tammes._common import checks
from tammes.lab.report.tables import Column, Grid, beside

if TYPE_CHECKING:
    from tammes.lab.training.config import Config

Preset = Literal["laptop", "paper"]
Settings = dict[str, Any]
"""Keyword arguments of `Config`."""

EACH_EPOCH: Settings = {"evaluate_every": 1}
"""Rows have a training curve with a point per epoch unless they say otherwise."""

MOST_SEEDS = 5
"""Seeds per row to look for in the records when the number of seeds is not given."""


@dataclass(frozen=True)
class Row:
    """One row of a table, for one seed.

    Attributes:
        key: name of its record and of its run folder.
        label: name of the row as printed. Rows with the same block and label are seeds of one line.
        config: the run behind it.
        paper: the paper's numbers as printed, under the names of our metrics.
        block: heading of the block of lines it belongs to.
        versus: key of the row it extends and is compared with.
    """

    key: str
    label: str
    config: "Config"
    paper: Mapping[str, float] = field(default_factory=dict)
    block: str = ""
    versus: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", self.key):
            raise ValueError(f"A key may contain letters, digits and . _ + -, got {self.key!r}.")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper.

    Attributes:
        name: name of its `<!-- NAME -->` markers in Markdown pages.
        title: what the numbers are about.
        columns: the metrics shown.
        rows: every row in order of appearance, with seed 0.
        notes: sentences printed below the table.
        prefix: start of all keys, which users leave out when they name rows.
        out: directory of the records, one JSON file per row and seed.
        runs: directory of the run folders, with their checkpoints.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    prefix: str = ""
    out: str
    runs: str


def reproduce(
    table: Table, *, rows: Sequence[str] = (), seeds: int = 1, jobs: int = 1, train: bool = True
) -> Grid:
    """Train the rows without a record, then show our numbers next to the paper's.

    Progress is saved: interrupt at any time and call again to continue.

    Args:
        table: what to reproduce.
        rows: names of rows, as `select` takes them; all of them by default.
        seeds: seeds per row. The table shows mean and standard deviation.
        jobs: rows to train in parallel, in processes that share the threads.
        train: False only reads the records that exist.
    """
    from tammes.lab.recipes.row_records import read_rows
    from tammes.lab.recipes.row_training import run_rows

    chosen, out = select(table.rows, rows, table.prefix), Path(table.out)
    if train:
        run_rows(seeded(chosen, seeds), out, runs=Path(table.runs), jobs=jobs)
    shown = seeded([row for row in table.rows if row in chosen], seeds)
    compared = {row.versus for row in chosen} - {row.key for row in chosen}
    unseen = seeded([row for row in table.rows if row.key in compared], seeds)
    records = read_rows([*shown, *unseen], out)
    return beside(table.title, shown, records, table.columns, table.notes, unseen=unseen)


def seeded(rows: Sequence[Row], seeds: int) -> list[Row]:
    """Each row with seeds 0 to `seeds` - 1."""
    checks.at_least("seeds", seeds, 1)
    return [_with_seed(row, seed) for row in rows for seed in range(seeds)]


def _with_seed(row: Row, seed: int) -> Row:
    """A second stage starts from the first stage of the same seed."""
    end = seed_suffix(seed)
    start = row.config.start and row.config.start + end
    config = dataclasses.replace(row.config, seed=seed, start=start)
    return dataclasses.replace(row, key=row.key + end, config=config)


def seed_suffix(seed: int) -> str:
    """The end of a key that names the seed; seed 0 has none."""
    return f"-seed{seed}" if seed else ""


def select(rows: Sequence[Row], names: Sequence[str], prefix: str = "") -> list[Row]:
    """The rows called `names`, in the order of the names; all rows if there are none.

    A name is a key without `prefix` and may contain shell wildcards: "cosface-*".
    """
    if not names:
        return list(rows)
    known = {row.key.removeprefix(prefix): row for row in rows}
    chosen: dict[str, Row] = {}
    for name in names:
        matches = [key for key in known if fnmatch.fnmatchcase(key, name)]
        if not matches:
            raise ValueError(f"There is no row {name!r}. {checks.did_you_mean(name, known)}")
        chosen |= {key: known[key] for key in matches}
    return list(chosen.values())


class Variant(NamedTuple):
    """A row independent of the data set: names without prefix, and its own settings."""

    name: str
    label: str
    block: str
    settings: Settings
    versus: str = ""


def build_rows(
    variants: Iterable[Variant],
    settings: Settings,
    *,
    prefix: str = "",
    paper: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Row]:
    """One row per variant: `settings`, overridden by the variant's own, and the paper's numbers by name."""
    from tammes.lab.training.config import Config

    return [
        Row(
            key=prefix + variant.name,
            label=variant.label,
            config=Config(**(EACH_EPOCH | settings | variant.settings)),
            paper=(paper or {}).get(variant.name, {}),
            block=variant.block,
            versus=variant.versus and prefix + variant.versus,
        )
        for variant in variants
    ]


def printed_table(name: str) -> dict[str, Any]:
    """The paper's own numbers, as printed: the file paper/NAME.json."""
    path = resources.files("tammes.lab.recipes").joinpath(f"paper/{name}.json")
    return json.loads(path.read_text(encoding="utf-8"))
