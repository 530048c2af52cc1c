"""`tammes report`: a page that shows and explains runs."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one HTML page that shows the margins of runs and explains them.

    How good each run is, what the numbers mean, what they could be at most and how close it came; its
    curves, samples, worst classes, prototypes and a map of its test images; its settings. One file that
    needs no network.

    examples:
      tammes report runs/photos
      tammes report runs/* --out comparison.html
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Folders of runs."""
    out: str | None = None
    """The file; by default report.html in the run's folder, or in the folder that holds all of them."""

    def run(self) -> int:
        from tammes.cli.subjects import recorded
        from tammes.report import write_page

        if not self.runs:
            raise ValueError("report needs at least one run. Name their folders: tammes report runs/*")
        out = Path(self.out) if self.out else Path(os.path.commonpath(self.runs)) / "report.html"
        write_page(recorded([Path(path) for path in self.runs]), out)
        print(f"The page is {out}.")
        return 0
