"""`tammes reproduce table1`: balanced classification with and without the sample margin regulariser."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tammes.cli.reproduce_table import TableFlags


@dataclass(frozen=True, kw_only=True)
class Table1(TableFlags):
    """Train the rows of Table 1 and appendix Table 5 and print them beside the paper's.

    acc is the test accuracy, m_cls the smallest angle between two prototypes, m_samp the mean sample
    margin on the test images. Rows are called ce, rsm, ce+0.5rsm, cosface-s64, cosface-s64+0.5rsm,
    cosface-s64+rsm, likewise arcface and normface, and lmsoftmax-s64, normface-s10-fixed. Interrupted, the
    same command goes on; finished rows are kept.

    examples:
      tammes reproduce table1 --dataset mnist --rows "normface-s64*"
      tammes reproduce table1 --dataset cifar10 --data-root data --jobs 2
      tammes reproduce table1 --dataset cifar10 --show
    """

    dataset: Literal["mnist", "cifar10", "cifar100", "tinyimagenet100"] = "mnist"
    """Images; <dataset>.npz in the data root is taken first, then torchvision's copy there."""
    out: str = "results/table1"
    """Folder of the rows' records; finished rows are kept."""
    runs: str = "runs/table1"
    """Folder of the runs with their checkpoints."""

    def run(self) -> int:
        from tammes.recipes import table1
        from tammes.report.tables import MARGINS

        if not self.show:
            print(f"Data: {self._place()}", file=sys.stderr)
        return self.reproduce(
            f"table1 {self.dataset} {self.preset}",
            f"Table 1 on {table1.NAMES[self.dataset]}, {self.preset} preset",
            table1.rows(self.dataset, self.preset, data_root=self.data_root),
            MARGINS,
            prefix=table1.prefix(self.dataset, self.preset),
            notes=table1.notes(self.dataset, self.preset),
        )

    def _place(self) -> str:
        archive = Path(self.data_root) / f"{self.dataset}.npz"
        return str(archive) if archive.is_file() else f"{self.dataset} below {self.data_root}"
