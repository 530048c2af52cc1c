"""`tammes reproduce table4`: face verification with and without the regularisers."""

from dataclasses import dataclass

from tammes.cli.reproduce_table import TableFlags


@dataclass(frozen=True, kw_only=True)
class Table4(TableFlags):
    """Train the rows of Table 4 and appendix Table 9 and print them beside the paper's.

    laptop learns the people of LFW's View 1 and verifies its test pairs: accuracy over ten folds, area
    below the ROC curve, TAR at FAR 1 %, and the smallest angle between two prototypes. paper learns MS1MV3
    (insightface's folder ms1m-retinaface-t1 in the data root, with lfw.bin, cfp_fp.bin, agedb_30.bin and
    IJBC in it) and needs GPUs. Rows are called arcface, arcface+rsm, arcface+rw, likewise cosface, then
    lmsoftmax, lmsoftmax+rw, normface. Interrupted, the same command goes on; finished rows are kept.

    examples:
      tammes reproduce table4 --data-root data --seeds 2
      tammes reproduce table4 --rows "arcface*"
      tammes reproduce table4 --preset paper --show
    """

    out: str = "results/faces"
    """Folder of the rows' records; finished rows are kept."""
    runs: str = "runs/faces"
    """Folder of the runs with their checkpoints."""

    def run(self) -> int:
        from tammes.recipes import table4
        from tammes.report.tables import Column

        laptop = (
            Column("accuracy %", "lfw_view1_accuracy", 2, 100),
            Column("AUC %", "lfw_view1_auc", 2, 100),
            Column("TAR at FAR 1e-2 %", "lfw_view1_tar_at_1e-02", 2, 100),
            Column("m_cls deg", "class_margin_deg"),
        )
        paper = (
            Column("IJB-C AUC", "ijbc_auc", 4, 100),
            Column("AgeDB-30", "agedb_30_accuracy", 3, 100),
            Column("CFP-FP", "cfp_fp_accuracy", 3, 100),
            Column("LFW", "lfw_accuracy", 3, 100),
            Column("IJB-C 1e-5", "ijbc_tar_at_1e-05", 2, 100),
            Column("IJB-C 1e-4", "ijbc_tar_at_1e-04", 2, 100),
        )
        where = "LFW View 1" if self.preset == "laptop" else "MS1MV3"
        return self.reproduce(
            f"table4 {self.preset}",
            f"Table 4 and appendix Table 9, {where}, {self.preset} preset",
            table4.rows(self.preset, data_root=self.data_root),
            laptop if self.preset == "laptop" else paper,
            prefix=f"{self.preset}-",
            notes=table4.NOTES[self.preset],
        )
