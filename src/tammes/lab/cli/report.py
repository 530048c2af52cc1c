"""`tammes report`: an HTML report on runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tammes._common.terminal import printable


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one HTML page that shows how good runs are, where they fail, and why.

    The page has accuracy with confidence intervals, photos of mistakes and of typical examples, confused and
    worst classes, a map of the test images, margins and their maxima, training curves, settings. A single
    file that works offline. Unfinished runs are skipped.

    examples:
      tammes report runs/photos
      tammes report runs/* --out comparison.html
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Run folders, or folders that contain run folders."""
    out: str | None = None
    """Output file. Default: report.html in the run folder, or in the parent folder of all runs."""

    def run(self) -> int:
        from tammes.lab.cli.reported_models import common_folder, finished_models
        from tammes.lab.cli.run_selection import finished_runs
        from tammes.lab.report import write_page

        runs = finished_runs(self.runs, "report")
        out = Path(self.out) if self.out else common_folder(runs) / "report.html"
        if out.is_dir():
            raise ValueError(f"{out} is a folder. Name a file with --out, for example {out / 'report.html'}.")
        write_page(finished_models(runs), out)
        print(printable(f"Report written to {out}."))
        return 0
