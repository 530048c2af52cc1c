"""Optima of objectives: lower bounds on losses (with corrected signs), and optima for free features."""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
