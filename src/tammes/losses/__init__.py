"""Losses and regularizers, which can be added and scaled: `CosFace(...) + 0.5 * SampleMargin()`.

`tammes.losses.functional` has the formulas as plain functions.
"""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
