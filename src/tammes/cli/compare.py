"""`tammes compare`: finished runs side by side."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Print the results of several runs side by side.

    m_cls is the smallest angle between two prototypes, m_samp the mean sample margin on the test images;
    beside each stands what it can be at most.

    examples:
      tammes compare runs/*
      tammes compare runs/a runs/b --json
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Folders of runs, or folders that hold such folders."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> int:
        from tammes.cli.tables import print_runs
        from tammes.training.folder import RunFolder, run_folders

        runs = run_folders(self.runs)
        if not runs:
            raise ValueError("compare needs at least one run. Name their folders: tammes compare runs/*")
        rows = [(str(path), RunFolder(path).finished()) for path in runs]
        if self.json:
            print(json.dumps([{"run": path} | result for path, result in rows]))
        else:
            print_runs(rows)
        return 0
