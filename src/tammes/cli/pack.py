"""`tammes pack`: k points on the sphere in d dimensions, as far apart as they can be."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Spread K points over the unit sphere in D dimensions so that the closest two are far apart.

    Prints the angle found, the best upper bound known and how many pairs touch. Ctrl-C or --time-limit ends
    the search with the best so far.

    examples:
      tammes pack 24 3 --plot packing.png
      tammes pack 100 16 --time-limit 30 --save points.npy
      tammes pack 8 3 --json
    """

    k: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="K")]
    """How many points."""
    d: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="D")]
    """Dimensions."""
    seed: int = 0
    """Of the random starts."""
    restarts: int | None = None
    """How many random starts; by default as many as are worth their time."""
    time_limit: float | None = None
    """Seconds after which the best so far is taken."""
    plot: str | None = None
    """Draw the points, in 3 dimensions: a .png, .pdf or .svg picture, or an .html page that turns."""
    save: str | None = None
    """Write the points to this .npy file, one a row."""
    json: bool = False
    """Print everything as JSON."""

    def run(self) -> int:
        if self.plot is not None and self.d != 3:
            raise ValueError(
                f"--plot draws the sphere in 3 dimensions, got {self.d}. Leave it out, or --save."
            )
        packing = self._search()
        if self.save is not None:
            _save(packing.points, Path(self.save))
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
                seed=self.seed,
                restarts=self.restarts,
                time_limit=self.time_limit,
                progress=show,
            )

    def _draw(self, packing: Any) -> None:
        from tammes.report.spheres import Panel, draw_spheres

        assert self.plot is not None
        title = f"{self.k} points, {math.degrees(packing.angle):.4f}°"
        draw_spheres([Panel(title, packing.points.numpy())], Path(self.plot))

    def _print(self, packing: Any) -> None:
        found = _numbers(packing)
        state = "met: nothing better exists" if packing.optimal else "not met: a better one may exist"
        print(f"angle     {found['angle_deg']:.7f} deg")
        print(f"bound     {found['bound_deg']:.7f} deg, {packing.bound_name}; {state}")
        print(f"gamma     {found['gamma']:.7f}, the largest gamma_min these prototypes allow")
        print(f"contacts  {found['contacts']} pairs touch, {found['rattlers']} points are loose")
        print(f"time      {found['seconds']:.2f} s")
        for path in filter(None, (self.plot, self.save)):
            print(f"written   {path}")


def _numbers(packing: Any) -> dict[str, Any]:
    return {
        "angle_deg": math.degrees(packing.angle),
        "bound_deg": math.degrees(packing.bound),
        "bound_name": packing.bound_name,
        "optimal": packing.optimal,
        "gamma": packing.gamma,
        "contacts": len(packing.contacts),
        "rattlers": len(packing.rattlers),
        "seconds": packing.seconds,
    }


def _save(points: Any, path: Path) -> None:
    import numpy as np

    if path.suffix != ".npy":
        raise ValueError(f"--save writes a .npy file, got {path.name!r}.")
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        np.save(file, points.numpy(), allow_pickle=False)
    temporary.replace(path)
