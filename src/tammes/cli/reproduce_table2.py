"""`tammes reproduce table2`: skewed classes with and without the zero-centroid regulariser."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tammes.cli.reproduce_table import TableFlags

if TYPE_CHECKING:
    from tammes.recipes.free_table2 import FreeRow
    from tammes.report.tables import Grid


@dataclass(frozen=True, kw_only=True)
class Table2(TableFlags):
    """Train the rows of Table 2 and appendix Table 6 and print them beside the paper's.

    acc is the test accuracy, m_cls the smallest angle between two prototypes. Rows are called ce, focal,
    cosface-0, cosface-1, ... cosface-20 (lambda, with the factor 100), likewise arcface, normface, ldam and
    lmsoftmax, and lse-s5-0, lse-s5-10, lse-s20-0, lse-s20-10. --free-features needs no data and no network:
    it computes the class margin that each row tends to, on both data sets and in all settings.
    Interrupted, the same command goes on; finished rows are kept.

    examples:
      tammes reproduce table2 --free-features
      tammes reproduce table2 --imbalance long_tailed:100 --rows ce "lmsoftmax-*" --data-root data
      tammes reproduce table2 --imbalance long_tailed:100 --rows "lmsoftmax-*" --choose
      tammes reproduce table2 --dataset cifar100 --preset paper --imbalance step:10
    """

    dataset: Literal["cifar10", "cifar100", "tinyimagenet100"] = "cifar10"
    """Images; <dataset>.npz in the data root is taken first, then torchvision's copy there."""
    imbalance: Literal["long_tailed:100", "long_tailed:10", "step:100", "step:10"] = "long_tailed:100"
    """How the training classes are thinned out."""
    choose: bool = False
    """Train the rows on four fifths of the training images too, and choose lambda by the others."""
    figures: bool = False
    """Draw curves with and without R_w and histograms over lambda from what was trained."""
    free_features: bool = False
    """Compute every class margin from the class counts alone, beside the printed ones."""
    out: str = "results/table2"
    """Folder of the rows' records; finished rows are kept."""
    runs: str = "runs/table2"
    """Folder of the runs with their checkpoints."""

    def run(self) -> int:
        return self._free_features() if self.free_features else self._train()

    def _train(self) -> int:
        from tammes.recipes import table2
        from tammes.recipes.table import select
        from tammes.report.tables import Column

        where = (self.dataset, self.imbalance, self.preset)
        every, prefix = table2.rows(*where, data_root=self.data_root), table2.prefix(*where)
        columns = (
            Column("acc", "accuracy", factor=100.0),
            Column("m_cls", "class_margin_deg"),
            Column("many", "many", factor=100.0),
            Column("medium", "medium", factor=100.0),
            Column("few", "few", factor=100.0),
            Column("ECE", "ece", factor=100.0, falls=True),
        )
        code = self.reproduce(
            f"table2 {' '.join(where)}",
            f"Table 2 on {table2.NAMES[self.dataset]}, {self.imbalance}, {self.preset} preset",
            every,
            columns,
            prefix=prefix,
            notes=table2.notes(self.dataset, self.preset),
        )
        if self.choose:
            self._choose(select(every, self.rows, prefix), every, prefix)
        if self.figures:
            self._draw(every, prefix)
        return code

    def _draw(self, every: list[Any], prefix: str) -> None:
        """Figs. 7, 8 and 12 to 16, as far as their rows are finished."""
        from tammes.recipes import table2
        from tammes.recipes.table import read_rows
        from tammes.report.figures import draw_histograms, draw_measures

        out, records = Path(self.out), read_rows(every, Path(self.out))
        where = f"{table2.NAMES[self.dataset]}, {self.imbalance}"
        drawn = []
        if curves := _present(table2.with_and_without(prefix), records):
            drawn.append(out / f"{prefix}curves.png")
            draw_measures(curves, f"{where}: with and without R_w", drawn[-1])
        for loss in table2.LOSSES:
            found = _present(table2.over_lambda(prefix, loss), records)
            if found := {head: record for head, record in found.items() if record["histograms"]}:
                drawn.append(out / f"{prefix}{table2.name_of(loss)}-histograms.png")
                draw_histograms(found, f"{loss} on {where}", drawn[-1])
        print("Written:", *drawn or ["no figure: no row is finished."])

    def _choose(self, chosen: list[Any], every: list[Any], prefix: str) -> None:
        """Train the held-out twins of the chosen rows, print which lambda they choose."""
        from tammes.cli.tables import print_grid
        from tammes.recipes import table2
        from tammes.recipes.table import read_rows, run_rows

        out = Path(self.out)
        if not self.show:
            run_rows(table2.held_out(chosen), out, runs=Path(self.runs), jobs=self.jobs)
        records = read_rows([*every, *table2.held_out(every)], out)
        print_grid(_choice_grid(table2.choices(prefix, records), records, prefix))

    def _free_features(self) -> int:
        from rich.progress import Progress

        from tammes.cli.tables import print_grid
        from tammes.provenance import stamp, write_json
        from tammes.recipes import free_table2
        from tammes.report.free_features import draw_free_features
        from tammes.report.tables import fill, to_markdown

        start, found, every = time.perf_counter(), [], list(free_table2.cells())
        with Progress(transient=True) as progress:
            for cell in progress.track(every, description="free features"):
                found.append(free_table2.free_row(*cell))
        out = Path(self.out)
        record = {"config": free_table2.settings()} | stamp(seconds=time.perf_counter() - start)
        verdict = free_table2.verdict(found)
        stored = [row._asdict() | {"gap_deg": row.gap} for row in found]
        write_json(out / "free_features.json", record | {"verdict": verdict, "rows": stored})
        draw_free_features(stored, out / "free_features.png")
        grids = [self._free_grid([r for r in found if r.dataset == name]) for name in free_table2.DATASETS]
        for grid in grids:
            print_grid(grid)
        print("\n".join(verdict))
        if self.fill is not None:
            text = "\n".join(f"{grid.title}:\n\n{to_markdown(grid)}" for grid in grids)
            fill(Path(self.fill), "free_features", f"{text}\n{' '.join(verdict)}\n")
        print(f"Written: {out / 'free_features.json'}, {out / 'free_features.png'}")
        return 0

    def _free_grid(self, rows: "list[FreeRow]") -> "Grid":
        """Computed, printed and, where there are runs, trained class margins of one data set."""
        from tammes.recipes import table2
        from tammes.report.tables import Cell, Grid

        trained = {kind: self._trained(rows[0].dataset, kind) for kind in table2.KINDS}
        heads = [
            head for kind in table2.KINDS for head in (kind, "paper", *(["ours"] if trained[kind] else []))
        ]
        blocks: dict[str, dict[int, list[Cell]]] = {}
        for row in rows:
            label = Cell(f"{row.loss} (lambda={row.strength})")
            cells = blocks.setdefault(row.loss, {}).setdefault(row.strength, [label])
            cells += [Cell(f"{row.class_margin_deg:.2f}"), Cell(f"{row.printed_deg:.2f}")]
            if trained[row.imbalance]:
                ours = trained[row.imbalance].get(f"{table2.name_of(row.loss)}-{row.strength}")
                cells.append(Cell("" if ours is None else f"{ours:.2f}"))
        title = f"Class margins with free features on {table2.NAMES[rows[0].dataset]}, in degrees"
        return Grid(title, ["", *heads], [("", list(lines.values())) for lines in blocks.values()])

    def _trained(self, dataset: str, imbalance: str) -> dict[str, float]:
        """Class margins of the finished rows of this preset."""
        from tammes.recipes import table2
        from tammes.recipes.table import read_rows

        where = (dataset, imbalance, self.preset)
        records = read_rows(table2.rows(*where), Path(self.out))
        prefix = table2.prefix(*where)
        return {
            key.removeprefix(prefix): record["metrics"]["class_margin_deg"]
            for key, record in records.items()
            if "metrics" in record
        }


def _present(keys: dict[str, str], records: Any) -> dict[str, Any]:
    """Under each label the record of its key, where it is finished and did not diverge."""
    found = {label: records.get(key) for label, key in keys.items()}
    return {label: record for label, record in found.items() if record is not None and "metrics" in record}


def _choice_grid(choices: Any, records: Any, prefix: str) -> "Grid":
    """Lambda by held-out images beside lambda by test images, and the test accuracy of each."""
    from tammes.recipes.table2 import name_of, starred
    from tammes.report.tables import Cell, Grid

    def accuracy(loss: str, strength: int) -> str:
        metrics = records.get(f"{prefix}{name_of(loss)}-{strength}", {}).get("metrics")
        return "" if metrics is None else f"{100 * metrics['accuracy']:.2f}"

    lines = [
        [
            Cell(c.loss if c.complete else f"{c.loss} (of the lambdas run)"),
            Cell(str(c.by_held_out)),
            Cell(accuracy(c.loss, c.by_held_out)),
            Cell(str(c.by_test)),
            Cell(accuracy(c.loss, c.by_test)),
        ]
        for c in choices
    ]
    best, of = starred()
    note = f"The paper's starred rows: {best} of {of} have the lambda of the best test accuracy."
    heads = ("", "lambda by held-out", "test acc", "lambda by test", "test acc")
    return Grid("Choosing lambda", heads, [("", lines)], notes=[note])
