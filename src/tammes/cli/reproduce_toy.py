"""`tammes reproduce toy`: runs the recipe, prints the table, writes the record and the figure."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Toy:
    """Place eight classes on the sphere by each loss: by the paper's SGD, and by descent to the true optimum.

    Writes toy.json (every number, with versions and times), toy.png and toy.html (the spheres) into --out.
    The paper trains for 500,000 epochs: --epochs 500000.

    examples:
      tammes reproduce toy
      tammes reproduce toy --epochs 500000 --out results
    """

    epochs: int = 20_000
    """Epochs of SGD for each loss; 20,000 is one swing of the paper's learning rate."""
    seed: int = 0
    """Of the random starts."""
    out: str = "results"
    """Folder for the record and the figures."""

    def run(self) -> int:
        from rich.console import Console
        from rich.progress import Progress

        from tammes import checks
        from tammes.provenance import stamp, write_json
        from tammes.recipes import toy

        checks.at_least("epochs", self.epochs, 1)
        start, found = time.perf_counter(), []
        with Progress(transient=True) as progress:
            task = progress.add_task("SGD", total=self.epochs)

            def tick(epoch: int) -> None:
                if epoch % 100 == 0 or epoch == self.epochs:
                    progress.update(task, completed=epoch)

            for row, configuration in toy.rows(epochs=self.epochs, seed=self.seed, tick=tick):
                found.append((row, configuration))
                progress.update(task, completed=0, description=f"{len(found)} rows done; SGD")
        out = Path(self.out)
        record = {"config": toy.settings(epochs=self.epochs, seed=self.seed)} | stamp(
            seconds=time.perf_counter() - start
        )
        write_json(out / "toy.json", record | {"rows": [row._asdict() for row, _ in found]})
        self._draw(found, out)
        Console(width=120).print(_table([row for row, _ in found]))
        print(f"Written: {out / 'toy.json'}, {out / 'toy.png'}, {out / 'toy.html'}")
        return 0

    def _draw(self, found: list[Any], out: Path) -> None:
        from tammes.report.spheres import Panel, draw_spheres

        panels = [
            Panel(
                f"{row.loss}\n{row.class_margin:.2f}°",
                _unit(configuration.prototypes),
                _unit(configuration.features),
            )
            for row, configuration in found
            if (row.k, row.d) == (8, 3) and row.method.startswith("SGD")
        ]
        best, points = next((r, c) for r, c in found if (r.k, r.d) == (8, 3) and "growing" in r.method)
        panels.append(
            Panel(
                f"lse, growing s\n{best.class_margin:.4f}°", _unit(points.prototypes), _unit(points.features)
            )
        )
        draw_spheres(panels, out / "toy.png")
        draw_spheres(
            [panel._replace(title=panel.title.replace("\n", " ")) for panel in panels], out / "toy.html"
        )


def _unit(points: Any) -> Any:
    from tammes.geometry.sphere import normalize

    return normalize(points).numpy()


def _table(rows: list[Any]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("k", "d", "loss", "how"):
        table.add_column(column, justify="right" if len(column) == 1 else "left")
    for column in ("m_cls deg", "paper", "of optimum", "gamma_min", "mean margin", "s"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row.k),
            str(row.d),
            row.loss,
            row.method,
            f"{row.class_margin:.4f}",
            "" if row.printed is None else f"{row.printed:.2f}",
            f"{100 * row.share:.3f} %",
            f"{row.gamma_min:.5f}",
            f"{row.mean_margin:.5f}",
            f"{row.seconds:.2f}",
        )
    return table
