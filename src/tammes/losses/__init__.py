"""Losses and regularizers, which can be added and scaled: `CosFace(...) + 0.5 * SampleMargin()`.

`dir(tammes.losses)` lists them, `CATALOGUE` has all classes, `parse` reads objectives from text, and
`suggest_scale` recommends a scale. `tammes.losses.functional` has the formulas as plain functions. To write
your own loss, derive from `SampleTerm` or use `make_loss`.
"""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
