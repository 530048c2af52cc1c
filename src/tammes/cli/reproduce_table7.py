"""`tammes reproduce table7`: two-stage methods with R_w in the first stage or in both."""

from dataclasses import dataclass

from tammes.cli.reproduce_table import TableFlags


@dataclass(frozen=True, kw_only=True)
class Table7(TableFlags):
    """Train two-stage methods (appendix Table 7) and print them beside the paper's.

    First stages are called ce and ce-mixup, with R_w ce+rw100, ce+rw10000, ...; what follows them crt, tau,
    lws, crt-mixup, mislas; with R_w in the first stage mislas+rw100-1, in both mislas+rw100-12. A method
    needs its first stage trained: name it before. Interrupted, the same command goes on.

    examples:
      tammes reproduce table7 --rows ce crt tau lws --data-root data
      tammes reproduce table7 --rows ce-mixup mislas "ce-mixup+rw100" "mislas+rw100-*" --data-root data
      tammes reproduce table7 --preset paper --data ImageNet_LT_train.txt --data-root imagenet
    """

    data: str = "ImageNet_LT_train.txt"
    """The list of training images, for --preset paper; that of test images lies beside it."""
    out: str = "results/table2"
    """Folder of the rows' records; finished rows are kept."""
    runs: str = "runs/table2"
    """Folder of the runs with their checkpoints."""

    def run(self) -> int:
        from tammes.recipes import table7
        from tammes.report.tables import Column

        columns = (
            Column("many", "many", factor=100.0),
            Column("medium", "medium", factor=100.0),
            Column("few", "few", factor=100.0),
            Column("all", "accuracy", factor=100.0),
            Column("ECE", "ece", factor=100.0, falls=True),
            Column("m_cls", "class_margin_deg"),
        )
        return self.reproduce(
            f"table7 {self.preset}",
            f"Two-stage methods, {self.preset} preset",
            table7.rows(self.preset, data=self.data, data_root=self.data_root, runs=self.runs),
            columns,
            prefix=table7.prefix(self.preset),
            notes=table7.notes(self.preset),
        )
