"""`tammes inspect`: the margins of any model, trained here or elsewhere."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Measure the margins of a model trained anywhere, and write the page that explains them.

    Takes an .npz file with the arrays embeddings (n, d) and labels (n) and, if there are any, prototypes
    (k, d), the weight of the last layer, and classes, their k names. Without prototypes the mean direction
    of each class stands for one. Or takes the folder of a run, whose model then goes over its data again.

    examples:
      tammes inspect embeddings.npz
      tammes inspect embeddings.npz --json
      tammes inspect runs/photos --weights best --split train
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|RUN")]
    """An .npz file, or the folder of a run."""
    out: str | None = None
    """The page; by default inspect.html in the run's folder, or FILE-margins.html beside the file."""
    weights: Literal["last", "best"] = "last"
    """Of a run: the last weights, or those with the best accuracy."""
    split: Literal["test", "train"] = "test"
    """Of a run: which images."""
    json: bool = False
    """Print the numbers as JSON."""

    def run(self) -> int:
        from tammes.cli.subjects import measured, stored
        from tammes.cli.tables import print_grid, print_numbers
        from tammes.report import write_page
        from tammes.report.details import confusion_grid

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
            print("\n".join([*found.notes, f"The page is {out}."]))
        return 0
