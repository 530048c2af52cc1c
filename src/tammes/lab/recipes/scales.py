"""The remaining gradient halfway to the largest margins, against the scale s, by number of classes.

Computed from formulas, without training. Run: tammes reproduce scales
"""

import time
from pathlib import Path
from typing import Any

from tammes.lab.record_stamp import stamp, write_record
from tammes.lab.report.gradient_figure import draw_gradients
from tammes.losses import ArcFace, NormFace, suggest_scale
from tammes.losses.advice import VANISHED, Advised, gradient_left

CLASSES = (10, 100, 1000, 10_000, 100_000)
SCALES = tuple(round(2 ** (step / 4), 4) for step in range(4, 29))
"""From 2 to 128, four per octave."""


def losses_at(scale: float) -> dict[str, Advised]:
    """The losses of the two panels."""
    return {"NormFace": NormFace(scale=scale), "ArcFace, m = 0.5": ArcFace(scale=scale, margin=0.5)}


def reproduce_scales(out: str = "results") -> list[Path]:
    """Write scales.json and scales.png into `out`; returns their paths."""
    start = time.perf_counter()
    gradients = {
        name: {str(k): [gradient_left(losses_at(s)[name], k, k / (k - 1)) for s in SCALES] for k in CLASSES}
        for name in losses_at(1.0)
    }
    advice = {str(k): suggest_scale(k)._asdict() for k in CLASSES}
    record: dict[str, Any] = {"advice": advice, "scales": SCALES, "gradients": gradients}
    files = [Path(out) / "scales.json", Path(out) / "scales.png"]
    write_record(files[0], record | stamp(seconds=time.perf_counter() - start))
    draw_gradients(SCALES, gradients, files[1], vanished=VANISHED)
    return files
