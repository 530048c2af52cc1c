"""Prototype heads: the last layer and the loss in one module; dense, streamed, sampled and sharded."""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
