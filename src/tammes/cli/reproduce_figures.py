"""`tammes reproduce figures`: the paper's pictures of visual classification from the records of Table 1."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Draw the figures of the paper's visual classification from the rows of Table 1 that are finished.

    Norms of prototypes over epochs (Fig. 1), fixed against learned prototypes (Fig. 2), histograms of
    similarities and sample margins (Figs. 4-6, 9-11), and the curves of every row. What was not trained is
    left out.

    examples:
      tammes reproduce figures
      tammes reproduce figures --preset paper --out figures
    """

    preset: Literal["laptop", "paper"] = "laptop"
    """Whose rows."""
    results: str = "results/table1"
    """Folder of the records that `tammes reproduce table1` wrote."""
    out: str = "results/figures"
    """Folder for the pictures."""

    def run(self) -> int:
        from tammes.recipes import table1
        from tammes.recipes.figures import figures
        from tammes.report.figures import draw_histograms, draw_measures, draw_norm_ratios

        draw = {"measures": draw_measures, "histograms": draw_histograms}
        written, missing, out = [], [], Path(self.out)
        cross_entropy: dict[str, Any] = {}
        for dataset, name in table1.NAMES.items():
            records = self._records(dataset)
            if "ce" in records:
                cross_entropy[name] = records["ce"][1]
            for figure in figures(dataset, self.preset):
                shown = dict(records[row] for row in figure.rows if row in records)
                path = out / f"{dataset}-{self.preset}-{figure.name}.png"
                if shown:
                    draw[figure.kind](shown, f"{name}: {figure.title}", path)
                    written.append(path)
                elif records:
                    missing.append(path.stem)
        if not written:
            raise ValueError(
                f"There is no finished row of preset {self.preset} in {self.results}. "
                "Train some: tammes reproduce table1"
            )
        if cross_entropy:
            path = out / f"{self.preset}-norm-ratios.png"
            draw_norm_ratios(cross_entropy, "Norms of prototypes under CE (Fig. 1)", path)
            written.append(path)
        print(*(f"Written: {path}" for path in written), sep="\n")
        if missing:
            print(f"Without finished rows, so not drawn: {', '.join(missing)}.")
        return 0

    def _records(self, dataset: str) -> dict[str, tuple[str, dict[str, Any]]]:
        """Label and record of each finished row, under its name."""
        from tammes.recipes import table1
        from tammes.recipes.table import read_rows

        rows, start = table1.rows(dataset, self.preset), table1.prefix(dataset, self.preset)
        found = read_rows(rows, Path(self.results))
        return {
            row.key.removeprefix(start): (row.label, found[row.key])
            for row in rows
            if row.key in found and "metrics" in found[row.key]
        }
