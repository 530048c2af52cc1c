"""`tammes demo`: four objectives on real digits in under a minute."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OBJECTIVES = ("CE", "NormFace(s=10)", "NormFace(s=10) + 0.5*R_sm", "LMSoftmax(s=10)")
SETTINGS: dict[str, Any] = {"model": "cnn4", "embedding": 64, "batch_size": 64, "lr": 0.003}


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train on scikit-learn's digits with four objectives and compare their margins.

    Needs no download. m_cls is the smallest angle between two class prototypes, m_samp the mean margin
    of the test images; beside each stands what it can be at most. A page beside the runs explains them.

    examples:
      tammes demo
      tammes demo --epochs 5 --json
    """

    epochs: int = 30
    """Passes over the data for each objective."""
    out: str | None = None
    """Folder for the runs; by default the next free of runs/demo-1, runs/demo-2, ..."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> int:
        from tammes.cli.subjects import recorded
        from tammes.cli.tables import print_runs
        from tammes.report import write_page
        from tammes.training.config import Config
        from tammes.training.folder import next_folder
        from tammes.training.loop import train
        from tammes.training.progress import Terminal

        out = Path(self.out) if self.out else next_folder(Path("runs") / "demo")
        rows = []
        for number, objective in enumerate(OBJECTIVES, 1):
            config = Config(data="digits", objective=objective, epochs=self.epochs, **SETTINGS)
            with Terminal(objective, every_epoch=False) as terminal:
                rows.append((str(number), train(config, out / str(number), sinks=[terminal])))
        page = out / "report.html"
        runs = recorded([out / name for name, _ in rows])
        write_page(runs, page, title="Handwritten digits by four objectives")
        if self.json:
            print(json.dumps([result for _, result in rows]))
        else:
            print_runs(rows)
            print(f"The runs are in {out}; the page that explains them is {page}.")
        return 0
