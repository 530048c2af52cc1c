"""`tammes reproduce`: the paper's experiments, our numbers next to the paper's.

A table needs no code here: `table_command` reads the flags of its command from the signature of the `table`
function in its file in `lab/recipes/`. `experiments.py` has the commands that are not tables.
"""

import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from tammes._common.checks import did_you_mean
from tammes.lab.cli import experiments

if TYPE_CHECKING:
    from tammes.lab.recipes.table import Table
    from tammes.lab.report.tables import Grid

TABLES = ("table1", "ablation", "cifar10", "table2", "table7", "table3", "table4", "longtail", "facelosses")
"""Modules of `tammes.lab.recipes` with a function `table`, which are commands by the same name."""


@dataclass(frozen=True)
class Reproduce:
    """Reproduce an experiment of the paper and print our numbers next to the paper's.

    experiments:
      claims      whether the records support each claim of the paper
      toy         eight classes on the sphere with free prototypes and features (appendix C.1, Fig. 3)
      limits      optima of the losses with free features (not in the paper): softmax codes, minority collapse
      scales      remaining gradient halfway to the largest margins, against the scale s
      losses      table of all losses, and their target logits against the angle
      table1      balanced classification with and without R_sm (Table 1, appendix Table 5)
      ablation    effect of R_sm by network, projection and learning rate
      cifar10     the README's CIFAR-10 runs with and without R_sm and packed prototypes
      figures     the figures of Table 1 (Figs. 1, 2, 4-6, 9-11)
      table2      imbalanced classification with and without R_w (Table 2, appendix Table 6)
      table7      two-stage methods with and without R_w (appendix Table 7)
      table3      person re-identification, each loss with a triplet loss (Table 3, appendix Table 8)
      table4      face verification with and without R_sm and R_w (Table 4, appendix Table 9)
      longtail    comparison of losses for imbalanced classes (not in the paper): CIFAR-10, long-tailed 100
      facelosses  comparison of face losses (not in the paper): LFW View 1

    examples:
      tammes reproduce claims
      tammes reproduce toy
      tammes reproduce table1 --dataset mnist --rows "normface-s64*"
      tammes reproduce table1 --help
    """

    @classmethod
    def from_args(cls, words: list[str]) -> Any:
        """Parse the experiment named by the first word and the flags in the others."""
        from tammes.lab.cli import flags

        if not words or words[0].startswith("-"):
            return flags(cls, "reproduce EXPERIMENT [options]", words or ["--help"])
        name, *rest = words
        if name not in EXPERIMENTS:
            raise ValueError(f"Unknown experiment {name!r}. {did_you_mean(name, EXPERIMENTS)}")
        return flags(EXPERIMENTS[name](), f"reproduce {name}", rest)


ROW_FLAGS = ("rows", "seeds", "jobs", "show", "check")
FILE_FLAGS = ("data_root", "out", "runs", "fill", "page", "plot")

SHARED_HELP = {
    "preset": "paper: the settings of the paper. laptop: a smaller network and fewer epochs.",
    "data_root": "Root directory of the data sets.",
    "out": "Directory for the records. Finished rows are not trained again.",
    "runs": "Directory for the run folders with their checkpoints.",
}
"""Help texts of keyword arguments that are the same in every recipe."""


@dataclass(frozen=True, kw_only=True)
class TableCommand:
    """Flags common to all tables; `table_command` adds those of one table."""

    recipe: ClassVar[Any]  # the function `table` of a recipe

    rows: tuple[str, ...] = ()
    """Rows to train and print, in this order. Wildcards are allowed: "cosface-*". Default: all."""
    seeds: int = 1
    """Number of seeds per row; the table shows mean and standard deviation."""
    jobs: int = 1
    """Number of rows to train in parallel; the processes share the threads."""
    show: bool = False
    """Print existing results without training."""
    check: str | None = None
    """Train this row again and report whether it agrees with its record within seed noise."""
    fill: str | None = None
    """Also write the table into this Markdown page, between its `<!-- NAME -->` markers."""
    page: str | None = None
    """Also write the table as a self-contained HTML page."""

    def run(self) -> int:
        from tammes.lab.cli.printing import print_grid
        from tammes.lab.recipes.table import reproduce
        from tammes.lab.report.tables import fill, to_markdown
        from tammes.lab.training.monitor import RunInterruptedError

        table, interrupted = self.table(), None
        if self.check is not None:
            return _check(table, self.check)
        if not self.show:
            print(f"Data: {_data_place(table)}", file=sys.stderr)
        how = {"rows": self.rows, "seeds": self.seeds}
        try:
            grid = reproduce(table, **how, jobs=self.jobs, train=not self.show)
        except RunInterruptedError as error:  # print the finished rows
            grid, interrupted = reproduce(table, **how, train=False), error
        print_grid(grid)
        if self.fill is not None:
            fill(Path(self.fill), table.name, to_markdown(grid))
        if self.page is not None:
            _write_page(grid, Path(self.page))
        if interrupted is not None:
            raise interrupted
        return 0

    def table(self) -> "Table":
        """The table that the flags describe."""
        names = inspect.signature(self.recipe).parameters
        return self.recipe(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class Table2Command(TableCommand):
    """Table 2, with extra options to choose lambda, draw figures, and compute margins without a network."""

    choose: bool = False
    """Also train on four fifths of the training images and choose lambda on the held-out fifth."""
    figures: bool = False
    """Draw training curves with and without R_w, and histograms by lambda, for the finished rows."""
    free_features: bool = False
    """Compute every class margin from the class counts alone, for both data sets and all settings,
    without data or a network."""

    def run(self) -> int:
        if self.free_features:
            return self._free_features()
        code, table = super().run(), self.table()
        if self.choose:
            from tammes.lab.cli.printing import print_grid
            from tammes.lab.recipes.table2_lambda import choose

            print_grid(choose(table, rows=self.rows, jobs=self.jobs, train=not self.show))
        if self.figures:
            from tammes.lab.recipes.figures import draw_table2

            print("Written:", *draw_table2(table) or ["no figure, because no row is finished."])
        return code

    def _free_features(self) -> int:
        from rich.progress import Progress

        from tammes.lab.cli.printing import print_grid
        from tammes.lab.recipes.table2_free_features import reproduce_free_features
        from tammes.lab.report.tables import fill, to_markdown

        table = self.table()
        preset: Any = table.name.split()[-1]
        with Progress(transient=True) as progress:
            track = functools.partial(progress.track, description="free features")
            found = reproduce_free_features(
                preset=preset, out=table.out, track=lambda found, total: track(found, total=total)
            )
        for grid in found.grids:
            print_grid(grid)
        print("\n".join(found.verdict))
        if self.fill is not None:
            text = "\n".join(f"{grid.title}:\n\n{to_markdown(grid)}" for grid in found.grids)
            fill(Path(self.fill), "free_features", f"{text}\n{' '.join(found.verdict)}\n")
        print("Written:", ", ".join(map(str, found.files)))
        return 0


@dataclass(frozen=True, kw_only=True)
class Table3Command(TableCommand):
    """Table 3, with an extra option to plot it."""

    plot: str | None = None
    """Also plot mAP against the scale s, ours and the paper's, to this PNG file."""

    def run(self) -> int:
        code = super().run()
        if self.plot is not None:
            from tammes.lab.recipes.table3 import plot_scales

            plot_scales(self.table(), Path(self.plot), seeds=self.seeds)
        return code


BASES = {"table2": Table2Command, "table3": Table3Command}
"""Tables whose commands have extra options."""


def table_command(name: str) -> type[TableCommand]:
    """Build the command of the table in `lab/recipes/NAME.py`.

    Its keyword arguments are the flags, and its docstring is the help page.
    """
    recipe = importlib.import_module(f"tammes.lab.recipes.{name}").table
    about, texts, examples = _split_docstring(inspect.getdoc(recipe) or "")
    hints, texts = get_type_hints(recipe), SHARED_HELP | texts
    fields = [
        (
            each.name,
            hints[each.name],
            dataclasses.field(default=each.default, metadata={"help": texts[each.name]}),
        )
        for each in inspect.signature(recipe).parameters.values()
    ]
    base = BASES.get(name, TableCommand)
    kind = dataclasses.make_dataclass(name, fields, bases=(base,), frozen=True, kw_only=True)
    kind.__doc__ = f"{about}\n\nProgress is saved; rerun the command to continue.\n\nexamples:\n{examples}"
    kind.recipe = staticmethod(recipe)
    shared = {each.name for each in dataclasses.fields(base)}
    names = sorted((each.name for each in dataclasses.fields(kind)), key=lambda name: name in shared)
    own = tuple(name for name in names if name not in (*ROW_FLAGS, *FILE_FLAGS))
    kind.option_groups = {"table": own, "rows": ROW_FLAGS, "files": FILE_FLAGS}
    return kind


def _split_docstring(text: str) -> tuple[str, dict[str, str], str]:
    """Split a Google-style docstring into its description, the text of each argument, and its examples."""
    text, _, examples = text.partition("\nExamples:\n")
    about, _, arguments = text.partition("\nArgs:\n")
    entries = re.findall(r"^ {4}(\w+): ((?:.|\n {5,})+)", arguments, re.MULTILINE)
    return about.strip(), {name: " ".join(entry.split()) for name, entry in entries}, examples


def _check(table: "Table", name: str) -> int:
    """Train a row again; exit code 1 if it differs from its record."""
    from tammes.lab.recipes.check import check

    found = check(table, name)
    words = {
        True: "agrees",
        False: "DIFFERS",
        None: "differs; seed noise unknown, because no row has a second seed",
    }
    for each in found:
        noise = "" if each.allowed is None else f", seed noise {each.allowed:.4g}"
        print(f"{each.metric}: {each.stored:.6g} stored, {each.now:.6g} now{noise}: {words[each.agrees]}")
    return int(any(each.agrees is False for each in found))


def _data_place(table: "Table") -> str:
    """The location of the training data."""
    config = table.rows[0].config
    archive = Path(config.data_root) / f"{config.data}.npz"
    return str(archive) if archive.is_file() else f"{config.data} below {config.data_root}"


def _write_page(grid: "Grid", path: Path) -> None:
    from tammes.lab.report.page import Page, Section, html_table

    lead = "Ours next to the paper's. Blank: no number; dash: the run diverged."
    rows = Section("All rows", "", html_table(grid._replace(title="")))
    Page(title=grid.title, lead=lead, opening=[rows], parts=[], closing=[]).write(path)


EXPERIMENTS: dict[str, Callable[[], Any]] = {
    "claims": lambda: experiments.Claims,
    "toy": lambda: experiments.Toy,
    "limits": lambda: experiments.Limits,
    "scales": lambda: experiments.Scales,
    "losses": lambda: experiments.Losses,
    "figures": lambda: experiments.Figures,
    **{name: functools.partial(table_command, name) for name in TABLES},
}
"""Maps each experiment to a function that returns its command, a dataclass whose fields are the flags."""
