"""`tammes theory`: the optimum of an objective with free features."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tammes._common.terminal import printable


@dataclass(frozen=True, kw_only=True)
class Theory:
    """Find the prototypes and free features that minimize OBJECTIVE, without a network.

    Print the class margin, the mean sample margin, which classes have merged, and the remaining gradient.
    Raw losses (CE, Focal) need --weight-decay.

    examples:
      tammes theory "NormFace(s=5)" --classes 10 --dim 64 --counts 5000 5000 5000 5000 5000 50 50 50 50 50
      tammes theory "LMSoftmax(s=10)" --classes 7 --dim 2 --plot circle.png
      tammes theory CE --classes 6 --dim 6 --counts 1000 1000 1000 1 1 1 --weight-decay 0.02
    """

    objective: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OBJECTIVE")]
    """Objective, as in --objective of `tammes train`."""
    classes: int
    """Number of classes."""
    dim: int
    """Number of dimensions."""
    counts: tuple[float, ...] = ()
    """Number of samples of each class. Default: one each."""
    per_class: int = 1
    """Number of features of each class."""
    weight_decay: float | None = None
    """Weight decay of prototypes and features. Raw losses have no optimum without it."""
    nonnegative: bool = False
    """Restrict features to non-negative coordinates, as after a ReLU."""
    seed: int = 0
    """Random seed."""
    plot: str | None = None
    """Draw prototypes and features to a .png, .pdf or .svg file: on the circle (D = 2), on the sphere (D = 3;
    also an .html page to rotate), or as matrices of angles (D > 3)."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from tammes.lab.report.optimum_figure import check_plot_suffix
        from tammes.losses import parse
        from tammes.theory import free_features

        if self.plot is not None:
            check_plot_suffix(self.dim, Path(self.plot))
        found = free_features(
            parse(self.objective),
            self._counts(),
            self.dim,
            per_class=self.per_class,
            weight_decay=self.weight_decay,
            nonnegative=self.nonnegative,
            seed=self.seed,
        )
        if self.plot is not None:
            self._draw(found)
        numbers = _numbers(found)
        if self.json:
            places = {"prototypes": found.points.tolist(), "features": found.features.tolist()}
            print(json.dumps(numbers | places))
        else:
            self._print(numbers)
        return 0

    def _counts(self) -> list[float]:
        counts = list(self.counts) or [1.0] * self.classes
        if len(counts) != self.classes:
            raise ValueError(f"--counts needs {self.classes} numbers, one per class, got {len(counts)}.")
        return counts

    def _print(self, numbers: dict[str, Any]) -> None:
        merged = "; ".join(" = ".join(map(str, group)) for group in numbers["merged"]) or "none"
        print(f"class margin   {numbers['class_margin_deg']:.4f} deg, at most {numbers['largest_deg']:.4f}")
        print(f"sample margin  {numbers['sample_margin']:.6f}, mean over classes")
        print(f"merged         {merged}")
        print(f"loss           {numbers['loss']:.6g}")
        print(f"gradient       {numbers['gradient']:.2g}")
        if self.plot is not None:
            print(printable(f"written        {self.plot}"))

    def _draw(self, found: Any) -> None:
        from tammes.geometry.sphere import normalize
        from tammes.lab.report.optimum_figure import draw_optimum

        assert self.plot is not None
        title = f"{self.objective}, class margin {math.degrees(found.class_margin):.2f}°"
        prototypes, features = (normalize(points).numpy() for points in (found.points, found.features))
        draw_optimum(title, prototypes, features, found.labels.numpy(), Path(self.plot))


def _numbers(found: Any) -> dict[str, Any]:
    from tammes.geometry.bounds import largest_class_margin

    return {
        "class_margin_deg": math.degrees(found.class_margin),
        "largest_deg": math.degrees(largest_class_margin(*found.points.shape).angle),
        "sample_margin": found.sample_margin,
        "merged": found.merged,
        "loss": found.loss,
        "gradient": found.gradient,
        "seconds": found.seconds,
    }
