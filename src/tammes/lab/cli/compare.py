"""`tammes compare`: finished runs side by side."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Print the results of several runs side by side.

    m_cls is the smallest angle between two prototypes, m_samp the mean sample margin on the test images.
    Each is shown with its maximum. Each setting that differs between the runs has a column. Unfinished runs
    are skipped.

    examples:
      tammes compare runs/*
      tammes compare runs/a runs/b --json
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Run folders, or folders that contain run folders."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> int:
        from tammes.lab.cli.printing import print_runs
        from tammes.lab.cli.run_selection import finished_runs
        from tammes.lab.training.run_folder import RunFolder

        runs = finished_runs(self.runs, "compare")
        rows = [(str(path), RunFolder(path).finished()) for path in runs]
        if self.json:
            print(json.dumps([{"run": path} | result for path, result in rows]))
        else:
            print_runs(rows)
        return 0
