"""`tammes inspect`: margins of any model, trained with tammes or not."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tammes._common.terminal import printable


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Measure the margins of any trained model and write a report page.

    Pass an .npz file with the arrays embeddings (n, d) and labels (n), and optionally prototypes (k, d),
    the weight of the last layer, and classes, the k class names. Several prototypes per class are (k, c, d).
    Without prototypes, class means are used.
    Or pass a run folder to evaluate its model again.

    examples:
      tammes inspect embeddings.npz
      tammes inspect embeddings.npz --json
      tammes inspect runs/photos --weights best --split train
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|RUN")]
    """An .npz file, or a run folder."""
    out: str | None = None
    """Output page. Default: inspect.html in the run folder, or FILE-margins.html next to the file."""
    weights: Literal["last", "best"] = "last"
    """Checkpoint of a run to use: the last one, or the one with the best accuracy."""
    split: Literal["test", "train"] = "test"
    """Split of a run to evaluate."""
    json: bool = False
    """Print the numbers as JSON."""

    def run(self) -> int:
        from tammes.lab.cli.printing import print_grid, print_numbers
        from tammes.lab.cli.reported_models import measured, stored
        from tammes.lab.report import write_page
        from tammes.lab.report.confusions import confusion_grid

        source = Path(self.source)
        if source.is_dir():
            found, out = measured(source, which=self.weights, split=self.split), source / "inspect.html"
        else:
            found, out = stored(source), source.with_name(f"{source.stem}-margins.html")
        out = Path(self.out) if self.out else out
        write_page([found], out)
        if self.json:
            print(json.dumps({**found.numbers, "notes": list(found.notes), "page": str(out)}))
        else:
            print_numbers(found.numbers)
            confused = confusion_grid(found)
            if confused is not None:
                print_grid(confused)
            print("\n".join(map(printable, [*found.notes, f"Report written to {out}."])))
        return 0
