"""`tammes reproduce`: the paper's experiments, its numbers beside ours."""

from dataclasses import dataclass
from typing import Any

from tammes.checks import nearest

EXPERIMENTS = {
    "toy": "tammes.cli.reproduce_toy:Toy",
    "table1": "tammes.cli.reproduce_table1:Table1",
    "figures": "tammes.cli.reproduce_figures:Figures",
    "table2": "tammes.cli.reproduce_table2:Table2",
    "table7": "tammes.cli.reproduce_table7:Table7",
    "table3": "tammes.cli.reproduce_table3:Table3",
    "table4": "tammes.cli.reproduce_table4:Table4",
}
"""Name of an experiment to the dataclass whose fields are its flags."""


@dataclass(frozen=True)
class Reproduce:
    """Run an experiment of the paper and print its numbers beside ours.

    experiments:
      toy     eight classes on the sphere, prototypes and features free (appendix C.1, Fig. 3)
      table1  balanced classification with and without R_sm (Table 1, appendix Table 5)
      figures the pictures of that (Figs. 1, 2, 4-6, 9-11)
      table2  skewed classes with and without R_w (Table 2, appendix Table 6)
      table7  two-stage methods with and without R_w (appendix Table 7)
      table3  person re-identification, each loss with a triplet loss (Table 3, appendix Table 8)
      table4  face verification with and without R_sm and R_w (Table 4, appendix Table 9)

    examples:
      tammes reproduce toy
      tammes reproduce table1 --dataset mnist --rows "normface-s64*"
      tammes reproduce table1 --help
    """

    @classmethod
    def from_args(cls, words: list[str]) -> Any:
        """The experiment named by the first word, with the flags of the others."""
        from tammes.cli import flags, load_class

        if not words or words[0].startswith("-"):
            return flags(cls, "reproduce", words or ["--help"])
        name, *rest = words
        if name not in EXPERIMENTS:
            raise ValueError(f"Unknown experiment {name!r}. {nearest(name, EXPERIMENTS)}")
        return flags(load_class(EXPERIMENTS[name]), f"reproduce {name}", rest)
