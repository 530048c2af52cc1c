"""What the commands of all tables share: their flags, training what is missing, printing, filling pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tammes.recipes.table import Row
    from tammes.report.page import Page
    from tammes.report.tables import Column, Grid


@dataclass(frozen=True, kw_only=True)
class TableFlags:
    """Flags of every table."""

    preset: Literal["laptop", "paper"] = "laptop"
    """The paper's own settings, or smaller networks and fewer epochs on the same data."""
    rows: tuple[str, ...] = ()
    """Rows to train, in this order, and to print; wildcards as in "cosface-*". All by default."""
    seeds: int = 1
    """Train each row with so many seeds; the table shows mean and standard deviation."""
    jobs: int = 1
    """So many rows are trained at the same time, in processes that share the threads."""
    data_root: str = "data"
    """Where the data sets lie."""
    out: str = "results"
    """Folder of the rows' records; finished rows are kept."""
    runs: str = "runs"
    """Folder of the runs with their checkpoints."""
    show: bool = False
    """Train nothing; print what there is."""
    fill: str | None = None
    """Also put the table into this Markdown page, between the lines that bear its name."""
    page: str | None = None
    """Also write the table as this HTML page, one file that needs no network."""

    def reproduce(
        self,
        name: str,
        title: str,
        rows: Sequence["Row"],
        columns: Sequence["Column"],
        *,
        prefix: str = "",
        notes: Sequence[str] = (),
    ) -> int:
        """Train the rows that are asked for and missing, then print them.

        Args:
            name: of the table in pages.
            title: what the numbers are of.
            rows: all of the table, in its order, without seeds.
            columns: the metrics.
            prefix: what all keys begin with; `--rows` leaves it out.
            notes: sentences below the table.
        """
        from tammes.cli.tables import print_grid
        from tammes.recipes.table import read_rows, run_rows, seeded, select
        from tammes.report.tables import beside, fill, to_markdown
        from tammes.training.watch import RunInterruptedError

        chosen, out, interrupted = select(rows, self.rows, prefix), Path(self.out), None
        try:
            if not self.show:
                run_rows(seeded(chosen, self.seeds), out, runs=Path(self.runs), jobs=self.jobs)
        except RunInterruptedError as error:
            interrupted = error
        shown = seeded([row for row in rows if row in chosen], self.seeds)
        compared = {row.versus for row in chosen} - {row.key for row in chosen}
        unseen = seeded([row for row in rows if row.key in compared], self.seeds)
        grid = beside(title, shown, read_rows([*shown, *unseen], out), columns, notes, unseen=unseen)
        print_grid(grid)
        if self.fill is not None:
            fill(Path(self.fill), name, to_markdown(grid))
        if self.page is not None:
            _page(grid).write(Path(self.page))
        if interrupted is not None:
            raise interrupted
        return 0


def _page(grid: "Grid") -> "Page":
    from tammes.report.page import Page, Section, wide

    lead = "The paper's numbers beside ours; blank where there are none, a dash where a run diverged."
    table = Section("Every row", "", wide(grid._replace(title="")))
    return Page(title=grid.title, lead=lead, opening=[table], parts=[], closing=[])
