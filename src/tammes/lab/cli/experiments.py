"""Experiments of `tammes reproduce` that are not a table of training runs."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Print whether the records support each claim of the paper, following the protocol in docs/claims.md.

    An effect is the difference between two runs with the same seed. A claim is supported or contradicted
    if there are at least three pairs and the entire 95 % interval lies on one side of zero.

    examples:
      tammes reproduce claims
      tammes reproduce claims --fill docs/claims.md --fill-short README.md
    """

    results: str = "results"
    """Directory of all records."""
    fill: str | None = None
    """Also write the table into this Markdown page, between its `<!-- claims -->` markers."""
    fill_short: str | None = None
    """Also write the rows with three or more pairs into this Markdown page, between its
    `<!-- claims short -->` markers."""

    def run(self) -> int:
        from tammes.lab.cli.printing import print_grid
        from tammes.lab.recipes.claims import LEAST_PAIRS, answers, claims_grid
        from tammes.lab.report.tables import fill, to_markdown

        found = answers(Path(self.results))
        grid = claims_grid(found)
        print_grid(grid)
        if self.fill is not None:
            fill(Path(self.fill), "claims", to_markdown(grid))
        if self.fill_short is not None:
            decided = [answer for answer in found if len(answer.effects) >= LEAST_PAIRS]
            fill(Path(self.fill_short), "claims short", to_markdown(claims_grid(decided, short=True)))
        return 0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Draw the figures of the paper's visual classification from the finished rows of Table 1.

    Prototype norms over epochs (Fig. 1), fixed and learned prototypes (Fig. 2), histograms of
    similarities and sample margins (Figs. 4-6, 9-11), the training curves of every row, and class margin
    and accuracy against s for all losses. Rows without records are left out.

    examples:
      tammes reproduce figures
      tammes reproduce figures --preset paper --out figures
    """

    preset: Literal["laptop", "paper"] = "laptop"
    """Preset whose rows to draw."""
    results: str = "results/table1"
    """Directory of the records written by tammes reproduce table1."""
    out: str = "results/figures"
    """Output directory."""

    def run(self) -> int:
        from tammes.lab.recipes.figures import draw_table1

        drawn = draw_table1(preset=self.preset, results=self.results, out=Path(self.out))
        print(*(f"Written: {path}" for path in drawn.files), sep="\n")
        if drawn.missing:
            print(f"Not drawn, because no rows are finished: {', '.join(drawn.missing)}.")
        return 0


@dataclass(frozen=True, kw_only=True)
class Toy:
    """Place eight classes on the sphere with each loss, by the paper's SGD and by descent to the optimum.

    Write toy.json (all numbers, with versions and times), toy.png and toy.html (the spheres) into --out,
    and one SGD record per loss into toy/. Finished losses are not trained again. The paper trains for
    500,000 epochs: --epochs 500000. With --losses, only the records of these losses are written.

    examples:
      tammes reproduce toy
      tammes reproduce toy --epochs 500000 --losses NormFace
      tammes reproduce toy --epochs 500000
    """

    epochs: int = 20_000
    """Epochs of SGD for each loss; 20,000 is one period of the paper's learning-rate schedule."""
    seed: int = 0
    """Random seed."""
    losses: tuple[str, ...] = ()
    """Train only these losses by SGD: NormFace, CosFace, ArcFace, "LM-Softmax (mean)", "LM-Softmax (lse)"."""
    out: str = "results"
    """Directory for the record and the figures."""

    def run(self) -> int:
        from tammes._common import checks
        from tammes.lab.cli.printing import print_grid
        from tammes.lab.recipes import toy
        from tammes.lab.record_stamp import commit

        checks.at_least("epochs", self.epochs, 1)
        for name in self.losses:
            checks.one_of("A loss", name, tuple(toy.OBJECTIVES))
        commit()  # cache it: the checkout may change during a long run
        progress = functools.partial(_epoch_bar, epochs=self.epochs)
        how: dict[str, Any] = {
            "epochs": self.epochs,
            "seed": self.seed,
            "out": self.out,
            "progress": progress,
        }
        if self.losses:
            for name in self.losses:
                row, _ = toy.trained(name, **how)
                print(f"{name}: {row.class_margin:.4f} deg")
            return 0
        found = toy.reproduce_toy(**how)
        print_grid(found.grid)
        print("Written:", ", ".join(map(str, found.files)))
        return 0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Compute the optima of the losses with free features, without a network: three tables and a figure.

    Parts: losses (which losses have the same optimum for k > d + 1), minority (rare classes against the
    imbalance ratio, with and without R_w), codes (softmax codes compared with packings, d = 2 to 8). Write
    limits.json and minority_collapse.png into --out. Progress is saved; rerun the command to continue.

    examples:
      tammes reproduce limits --part minority
      tammes reproduce limits --part codes --largest 16
      tammes reproduce limits --show --fill docs/theory.md
    """

    part: Literal["all", "losses", "minority", "codes"] = "all"
    """Part to compute and print."""
    largest: int = 32
    """Largest number of classes for the softmax codes."""
    out: str = "results"
    """Directory for the record and the figure."""
    jobs: int = 1
    """Number of rows to compute in parallel."""
    show: bool = False
    """Print existing results without computing."""
    fill: str | None = None
    """Also write the tables into this Markdown page, between its `<!-- limits PART -->` markers."""

    def run(self) -> int:
        from tammes._common import checks
        from tammes.lab.cli.printing import print_grid
        from tammes.lab.recipes.limits import PARTS, read_limits, reproduce_limits
        from tammes.lab.report.limits_tables import GRIDS
        from tammes.lab.report.tables import fill, to_markdown

        parts = PARTS if self.part == "all" else (self.part,)
        path, jobs = Path(self.out) / "limits.json", checks.at_least("jobs", self.jobs, 1)
        if not self.show:
            reproduce_limits(parts=parts, largest=self.largest, out=self.out, jobs=jobs, report=_print_now)
            print(f"Written: {path}")
        record = read_limits(path)
        for part in parts:
            if rows := list(record.get(part, {}).values()):
                print_grid(grid := GRIDS[part](rows))
                if self.fill is not None:
                    fill(Path(self.fill), f"limits {part}", to_markdown(grid))
        return 0


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Plot the remaining gradient halfway to the largest margins against s, for 10 to 100,000 classes.

    Write scales.json and scales.png into --out. Computed from formulas, without training.

    examples:
      tammes reproduce scales
    """

    out: str = "results"
    """Directory for the record and the figure."""

    def run(self) -> int:
        from tammes.lab.recipes.scales import reproduce_scales

        print("Written:", *reproduce_scales(self.out))
        return 0


@dataclass(frozen=True)
class Losses:
    """Write the table of all losses in the catalogue, and plot the target logit of each against the angle.

    examples:
      tammes reproduce losses --fill docs/losses.md --figure docs/figures/target_logits.png
    """

    fill: str | None = None
    """Markdown file to write the table into, between its `<!-- losses -->` markers. Default: print it."""
    figure: str | None = None
    """PNG file for the figure."""

    def run(self) -> int:
        from tammes.lab.report.loss_page import draw_target_logits, loss_table
        from tammes.lab.report.tables import fill

        if self.fill is None:
            print(loss_table(), end="")
        else:
            fill(Path(self.fill), "losses", loss_table())
        if self.figure is not None:
            draw_target_logits(Path(self.figure))
        return 0


def _print_now(line: str) -> None:
    print(line, flush=True)


@contextlib.contextmanager
def _epoch_bar(name: str, *, epochs: int) -> Iterator[Callable[[int], None]]:
    """A progress bar over the epochs of a loss, updated every hundred epochs."""
    from rich.progress import Progress

    with Progress(transient=True) as progress:
        task = progress.add_task(name, total=epochs)

        def tick(epoch: int) -> None:
            if epoch % 100 == 0 or epoch == epochs:
                progress.update(task, completed=epoch)

        yield tick
