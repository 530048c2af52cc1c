"""`tammes reproduce table3`: person re-identification, each loss with a triplet loss."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tammes.cli.reproduce_table import TableFlags


@dataclass(frozen=True, kw_only=True)
class Table3(TableFlags):
    """Train the rows of Table 3 and appendix Table 8 and print them beside the paper's.

    mAP is the mean average precision, rank-k the share of queries with a right image among the first k,
    m_cls the smallest angle between two prototypes. Rows are called ce, arcface-s10, -s20, -s32, -s64,
    likewise cosface, normface and lmsoftmax. Interrupted, the same command goes on; finished rows are kept.

    examples:
      tammes reproduce table3 --data-root data --rows ce lmsoftmax-s10
      tammes reproduce table3 --preset paper --data-root data
      tammes reproduce table3 --show --plot docs/reid_scales.png
    """

    dataset: Literal["market1501", "dukemtmc-reid"] = "market1501"
    """Images, in the official layout below the data root."""
    out: str = "results/reid"
    """Folder of the rows' records; finished rows are kept."""
    runs: str = "runs/reid"
    """Folder of the runs with their checkpoints."""
    plot: str | None = None
    """Also draw mAP over the scale s, ours and the paper's, to this PNG file."""

    def run(self) -> int:
        from tammes.recipes import table3
        from tammes.recipes.table import read_rows, seeded
        from tammes.report.scales import draw_scales
        from tammes.report.tables import Column

        rows = table3.rows(self.dataset, self.preset, data_root=self.data_root)
        done = self.reproduce(
            f"table3 {self.dataset} {self.preset}",
            f"Table 3 on {table3.NAMES[self.dataset]}, {self.preset} preset",
            rows,
            (
                Column("mAP", "mAP", 1, 100),
                Column("rank-1", "rank1", 1, 100),
                Column("rank-5", "rank5", 1, 100),
                Column("rank-10", "rank10", 1, 100),
                Column("m_cls", "class_margin_deg", 2),
            ),
            prefix=table3.prefix(self.dataset, self.preset),
            notes=table3.notes(self.preset),
        )
        if self.plot is not None:
            every = seeded(rows, self.seeds)
            draw_scales(every, read_rows(every, Path(self.out)), Path(self.plot))
        return done
