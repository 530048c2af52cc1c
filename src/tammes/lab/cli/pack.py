"""`tammes pack`: spread k points on the unit sphere in d dimensions."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tammes._common.terminal import printable


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Solve the Tammes problem: maximize the smallest angle between K points on the sphere in D dimensions.

    Print the angle found, the best known upper bound and the number of contacts. Ctrl-C or --time-limit
    stops the search and keeps the best packing so far.

    examples:
      tammes pack 24 3 --plot packing.png
      tammes pack 100 16 --time-limit 30 --save points.txt
      tammes pack 100 16 --start points.txt --time-limit 300 --save better.txt
      tammes pack 8 3 --json
    """

    k: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="K")]
    """Number of points."""
    d: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="D")]
    """Number of dimensions."""
    start: str | None = None
    """Start from the points in this file: .npy, or text with one point or one number per line."""
    seed: int = 0
    """Random seed."""
    restarts: int | None = None
    """Number of random starts. Default: chosen by problem size."""
    time_limit: float = 60.0
    """Time limit in seconds; the best packing so far is returned."""
    plot: str | None = None
    """Draw the points (D = 3 only): a .png, .pdf or .svg picture, or an .html page to rotate."""
    save: str | None = None
    """Save the points to this .txt or .npy file, one per row."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from tammes.geometry._point_checks import checked_suffix

        if self.plot is not None and self.d != 3:
            raise ValueError(f"--plot requires D = 3, got {self.d}. Omit it, or use --save.")
        save = None if self.save is None else checked_suffix(Path(self.save))
        packing = self._search()
        if save is not None:
            packing.save(save)
        if self.plot is not None:
            self._draw(packing)
        if self.json:
            print(json.dumps(_numbers(packing) | {"points": packing.points.tolist()}))
        else:
            self._print(packing)
        return 0

    def _search(self) -> Any:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from tammes.geometry.packing import pack

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, transient=True, console=Console(stderr=True)) as progress:
            task = progress.add_task("searching")

            def show(angle: float, doing: str) -> None:
                progress.update(task, description=f"{math.degrees(angle):.4f} deg, {doing}")

            return pack(
                self.k,
                self.d,
                start=self.start,
                seed=self.seed,
                restarts=self.restarts,
                time_limit=self.time_limit,
                progress=show,
            )

    def _draw(self, packing: Any) -> None:
        from tammes.lab.report.sphere_figure import Panel, draw_spheres

        assert self.plot is not None
        title = f"{self.k} points, {math.degrees(packing.angle):.4f}°"
        draw_spheres([Panel(title, packing.points.numpy())], Path(self.plot))

    def _print(self, packing: Any) -> None:
        found = _numbers(packing)
        state = (
            "attained: the packing is optimal"
            if packing.optimal
            else "not attained: a better packing may exist"
        )
        print(f"angle     {found['angle_deg']:.7f} deg")
        print(f"bound     {found['bound_deg']:.7f} deg, {packing.bound_name}; {state}")
        print(f"gamma     {found['gamma']:.7f}, the largest gamma_min for these prototypes")
        print(f"contacts  {found['contacts']} pairs touch, {found['rattlers']} points are rattlers")
        print(f"time      {found['seconds']:.2f} s")
        for path in filter(None, (self.plot, self.save)):
            print(printable(f"written   {path}"))


def _numbers(packing: Any) -> dict[str, Any]:
    return {
        "angle_deg": math.degrees(packing.angle),
        "bound_deg": math.degrees(packing.bound),
        "bound_name": packing.bound_name,
        "optimal": packing.optimal,
        "theorem": packing.theorem,
        "gamma": packing.gamma,
        "contacts": len(packing.contacts),
        "rattlers": len(packing.rattlers),
        "seconds": packing.seconds,
    }
