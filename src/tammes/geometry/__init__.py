"""Margins, simplices, bounds and packings on the unit sphere."""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
