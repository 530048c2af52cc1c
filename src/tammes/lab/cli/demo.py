"""`tammes demo`: four objectives on real digits in under a minute."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tammes._common.terminal import printable

OBJECTIVES = ("CE", "NormFace(s=10)", "NormFace(s=10) + 0.5*R_sm", "LMSoftmax(s=10)")
SETTINGS: dict[str, Any] = {"model": "cnn4", "embedding": 64, "batch_size": 64, "lr": 0.003}


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train on scikit-learn's digits with four objectives and compare their margins.

    No download is needed. m_cls is the smallest angle between two prototypes, m_samp the mean sample margin
    on the test images; each is shown with its maximum. Also write a report page.

    examples:
      tammes demo
      tammes demo --epochs 5 --json
    """

    epochs: int = 30
    """Number of epochs for each objective."""
    out: str | None = None
    """Directory for the runs. Default: the first of runs/demo-1, runs/demo-2, ... that does not exist."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> int:
        from tammes.lab.cli.printing import print_runs
        from tammes.lab.cli.reported_models import finished_models
        from tammes.lab.report import write_page
        from tammes.lab.training.config import Config
        from tammes.lab.training.loop import train
        from tammes.lab.training.progress import Terminal
        from tammes.lab.training.run_folder import next_folder

        out = Path(self.out) if self.out else next_folder(Path("runs") / "demo")
        rows = []
        for number, objective in enumerate(OBJECTIVES, 1):
            config = Config(data="digits", objective=objective, epochs=self.epochs, **SETTINGS)
            with Terminal(objective, every_epoch=False) as terminal:
                rows.append((str(number), train(config, out / str(number), sinks=[terminal])))
        page = out / "report.html"
        runs = finished_models([out / name for name, _ in rows])
        write_page(runs, page, title="Handwritten digits: four objectives compared")
        if self.json:
            print(json.dumps([result for _, result in rows]))
        else:
            print_runs(rows)
            print(printable(f"Runs: {out}. Report: {page}."))
        return 0
