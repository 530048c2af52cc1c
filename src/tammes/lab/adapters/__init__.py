"""Adapters for the Hugging Face hub and Trainer, and for pytorch-metric-learning."""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
