"""`tammes report`: a page that shows and explains runs."""

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
    """Folders of runs, or folders that hold such folders."""
    out: str | None = None
    """The file; by default report.html in the run's folder, or in the folder that holds all of them."""

    def run(self) -> int:
        from tammes.cli.subjects import common, recorded
        from tammes.report import write_page
        from tammes.training.folder import run_folders

        runs = run_folders(self.runs)
        if not runs:
            raise ValueError("report needs at least one run. Name their folders: tammes report runs/*")
        out = Path(self.out) if self.out else common(runs) / "report.html"
        if out.is_dir():
            raise ValueError(f"{out} is a folder. Name a file with --out, as {out / 'report.html'}.")
        write_page(recorded(runs), out)
        print(f"The page is {out}.")
        return 0
